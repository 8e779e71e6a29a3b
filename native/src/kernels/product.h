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

// Activations (count, padded columns) in one form, filled up with zeros. As float32 they lie row after row. Otherwise
// tiles of some activations lie one after the other, each cut into words of 4 bytes, of 2 or 4 columns: (words,
// activations of the tile). So a product reads one stream. As int8 each span of 32 columns has a scale, and beside it
// are, of a span's first and last 16 columns and of both, their sums: `starts` times minus the code that means zero,
// `sums` times the span's scale.
constexpr std::size_t kSums = 3;
struct Activations {
  Form form = Form::f32;
  std::size_t count = 0;
  std::size_t columns = 0;  // padded to whole spans
  const void* values = nullptr;
  const float* scales = nullptr;         // by tile (spans, activations)
  const std::int32_t* starts = nullptr;  // by tile (spans, kSums, activations)
  const float* sums = nullptr;           // the same
};

// Number of activations of the next tile, where `left` are left and `most` fit: of int8,
static constexpr std::size_t tile_size(std::size_t left, std::size_t most) {
  if (left >= most) return most;
  return left < 5 ? left : 4;
}
// and of bfloat16, whose tiles are as equal as can be: one of few activations waits for each sum.
static constexpr std::size_t equal_tile_size(std::size_t left, std::size_t most) {
  const std::size_t tiles = (left + most - 1) / most;
  return (left + tiles - 1) / tiles;
}

// Target of one activation: `step` are in its tile, and the pointers lead to its own place in that. The rest is for
// int8. `zero`: the code that means zero.
struct ConvertTo {
  void* values = nullptr;
  std::size_t step = 1;
  float* scales = nullptr;
  std::int32_t* starts = nullptr;
  float* sums = nullptr;
  std::int32_t zero = 0;
};
using ConvertFunction = void (*)(const float* x, std::size_t columns, std::size_t padded, const ConvertTo& to);
// y[i * stride + row] for each of the activations i and the rows of blocks first to last. Whole blocks are written.
using ProductFunction = void (*)(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last,
                                 float* y, std::size_t stride);

struct ProductTable {
  bool bf16_pairs;             // whether the product of bfloat16 takes bfloat16 activations
  ConvertFunction convert[3];  // by Form
  ProductFunction bf16, f16, f32;
  std::size_t at_once;  // activations of a tile of bfloat16
};

// Activations as int8.
struct SmallTable {
  ProductFunction integers[9];  // by bits
  ProductFunction table;        // 4-bit codes that are looked up
  std::size_t at_once;          // activations of a tile
  std::int32_t less;  // what is taken off codes of 8 bits, and off what is looked up, before they are multiplied
};

}  // namespace ferrule
