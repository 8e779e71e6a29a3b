// Layout of packed matrices: 16 rows side by side, so that the lanes of a vector are rows and no sum crosses lanes.
//
// A matrix is a row of blocks, of 16 rows each. In a block:
//   plain numbers: for each column the 16 rows' numbers (bfloat16: for each pair of columns, the 16 rows' pairs).
//   groups: for each group of columns its scales (16 rows), its offsets if it has any, then its codes in spans of 32
//     columns. A span is cut into quads of 4 columns; a vector of 64 bytes has one byte for each row and column of a
//     quad, and several quads in the bits of its bytes. Codes of 3, 5 and 6 bits lie in two planes, of low and of high
//     bits. Groups of 16 columns are in pairs: two scales (and two offsets) before each span.
// Nested scales are whole numbers of -128 to 127, times a float16 for each 256 columns, which lie before these; so are
// offsets that are held as scales are.
// Rows are filled up to 16 and columns to a whole span: their scales and plain numbers are zero.
//
// Nothing here is inline: kernels are compiled for newer instructions than all machines have, and the linker might take
// a copy of theirs for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrule {

enum class Codes : std::uint8_t { bf16, f16, f32, integer, fp4, iq4nl, nf4, e4m3, e5m2 };
enum class ScaleKind : std::uint8_t { f16, bf16, f32, e8m0, nested };
// Offset that is added to the numbers of a group: none, a number that is held as scales are, or minus its scale times
// a code that means zero.
enum class Offsets : std::uint8_t { none, numbers, zero_points };

constexpr std::size_t kBlockRows = 16;
constexpr std::size_t kSpan = 32;  // columns
constexpr std::size_t kQuad = 4;
constexpr std::size_t kSuper = 256;  // columns

struct MatrixLayout {
  std::size_t rows = 0;
  std::size_t columns = 0;
  Codes codes = Codes::bf16;
  // The rest is for groups only.
  std::uint8_t bits = 0;
  ScaleKind scale = ScaleKind::f16;
  Offsets offsets = Offsets::none;
  std::int32_t zero = 0;  // the integer code that means zero
  std::size_t group = 0;  // columns, a multiple of 16; of the padded row where all share one scale

  bool plain() const;
  // Number of columns that a block has room for.
  std::size_t padded_columns() const;
  std::size_t block_bytes() const;
  std::size_t blocks() const;
  std::size_t bytes() const;
  // Whether products may take activations as int8: codes are small integers, or look them up.
  bool small_integers() const;
};

// Layout of a block of groups. A unit is what has one piece of metadata: a group, or two of 16 columns.
struct Units {
  std::size_t count = 0;    // in a block
  std::size_t columns = 0;  // of a unit, and so on
  std::size_t bytes = 0;
  std::size_t spans = 0;
  std::size_t span_bytes = 0;
  // Metadata: scales, then offsets, each of 16 rows.
  std::size_t scales = 0;
  std::size_t scale_bytes = 0;
  std::size_t offset_start = 0;
  std::size_t offset_bytes = 0;
  std::size_t meta_bytes = 0;
  // Numbers before each `per_super` units by which nested scales and, if there are any, offsets are multiplied.
  // Without nested scales nothing does, before all of them.
  std::size_t per_super = 0;
  std::size_t super_bytes = 0;
  bool nested = false;
  ScaleKind scale = ScaleKind::f16;
  Offsets offsets = Offsets::none;
};

Units units_of(const MatrixLayout& layout);

// nullptr, or what is wrong with a layout that comes from outside.
const char* invalid(const MatrixLayout& layout);

}  // namespace ferrule
