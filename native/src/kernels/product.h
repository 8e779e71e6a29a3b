// Products of packed matrices with some columns of activations, by the best instructions that this machine has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace ferrule {

// `order`: which of the activations each column takes (-1: none), where that is not its own.
struct PackedMatrix {
  MatrixLayout layout;
  const std::uint8_t* data = nullptr;
  const std::int32_t* order = nullptr;
};

// The forms of activations that products take.
enum class Form : std::uint8_t { f32, bf16, int8 };

// Activations (count, padded columns) in one form: row after row, filled up with zeros. int8: each span of 32 columns
// has a scale; beside them are sums of its first and last 16 columns, and of both.
constexpr std::size_t kSums = 3;
struct Activations {
  Form form = Form::f32;
  std::size_t count = 0;
  std::size_t columns = 0;  // padded to whole spans
  const void* values = nullptr;
  const float* scales = nullptr;       // (count, columns / 32)
  const std::int32_t* sums = nullptr;  // (count, columns / 32, kSums)
};

using ConvertFunction = void (*)(const float* x, std::size_t columns, std::size_t padded, void* values, float* scales,
                                 std::int32_t* sums);
// y[i * stride + row] for each of the activations i and the rows of blocks first to last. Whole blocks are written.
using ProductFunction = void (*)(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last,
                                 float* y, std::size_t stride);

struct ProductTable {
  bool bf16_pairs;             // whether the product of bfloat16 takes bfloat16 activations
  ConvertFunction convert[3];  // by Form
  ProductFunction bf16, f16, f32;
  ProductFunction small[9];     // by bits: integers, activations as int8
  ProductFunction table_small;  // 4-bit codes that are looked up, activations as int8
  ProductFunction exact;        // any groups, activations as float32
};

}  // namespace ferrule
