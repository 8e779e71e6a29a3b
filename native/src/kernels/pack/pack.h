// Packing: rows of codes and scales, or of plain numbers, into the blocks that products read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace ferrule {

// Rows `first` to `first + rows` of a matrix in groups. `codes` (rows, columns), with these bytes from one row or
// column to the next. `scales` and, where the layout has them, `offsets` (rows, columns / group): row after row. Where
// scales are nested, `supers` and `super_offsets` (rows, columns / 256) are what they are whole multiples of. `first`
// is a multiple of 16, and `out` the whole matrix, zeros where nothing was packed.
struct GroupedRows {
  std::size_t first = 0;
  std::size_t rows = 0;
  const std::uint8_t* codes = nullptr;
  std::size_t row_stride = 0;
  std::size_t column_stride = 1;
  const float* scales = nullptr;
  const float* offsets = nullptr;
  const float* supers = nullptr;
  const float* super_offsets = nullptr;
};
void pack_groups(const MatrixLayout& layout, const GroupedRows& given, std::uint8_t* out);

// The same for plain numbers (rows, columns), as they are to be held; `stride`: numbers from one row to the next.
void pack_plain(const MatrixLayout& layout, std::size_t first, std::size_t rows, const void* numbers,
                std::size_t stride, std::uint8_t* out);

}  // namespace ferrule
