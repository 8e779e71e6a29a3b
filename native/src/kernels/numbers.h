// The numbers of a packed matrix, one row at a time: for embeddings and tests, not for products.
#pragma once

#include <cstddef>

#include "kernels/product.h"

namespace ferrule {

// Row `row`, its columns in the order in which they are stored.
void read_row(const PackedMatrix& matrix, std::size_t row, float* out);

}  // namespace ferrule
