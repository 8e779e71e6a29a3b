// Products of small integers (and of 4-bit codes that stand for them) with activations as int8. CMake compiles this
// file several times, with FERRULE_ISA naming the instruction set.
//
// Lanes are rows: a vector of codes belongs to 16 rows, four bytes of an activation are the same in all lanes. Sums
// stay in registers over a whole row: kRows blocks by the kCount activations of a tile, whose numbers lie side by side.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/product.h"

namespace ferrule {
namespace {

#if defined(__AVX512F__)  // registers for two blocks
constexpr int kBlocks = 2;
#else
constexpr int kBlocks = 1;
#endif

// Values for which codes stand: bytes of a table in which they are looked up. `scale`: of these values.
struct Looked {
  U table;
  float scale;
};

struct Tile {
  const std::int8_t* values;
  const float* scales;
  const std::int32_t* starts;
  const float* sums;
};

inline std::int32_t four_at(const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, sizeof four);
  return four;
}

// The quads of a span, whose activations are at `x`: kCount times four bytes for each quad.
template <int kBits, bool kTable, int kRows, int kCount, int... kQuads>
inline void add_quads(Numbers<kQuads...>, I (&dot)[kRows][kCount], const std::uint8_t* const (&span)[kRows],
                      const std::int8_t* x, const Looked& looked) {
  const auto one = [&]<int kAt>(Numbers<kAt>) {
    U codes[kRows];
    for (int m = 0; m < kRows; ++m) {
      codes[m] = quad<kBits, kAt>(span[m]);
      if constexpr (kTable) {
        codes[m] = lookup(looked.table, codes[m]);
      } else if constexpr (kBits == 8) {
        codes[m] = less(codes[m]);
      }
    }
    for (int b = 0; b < kCount; ++b) {
      const std::int32_t four = four_at(x + 4 * (kAt * kCount + b));
      for (int m = 0; m < kRows; ++m) dot[m][b] = dot4 < kTable ? 8 : kBits > (dot[m][b], codes[m], four);
    }
  };
  (one(Numbers<kQuads>{}), ...);
}

// Scale `which` of a unit, and of what its codes stand for.
template <bool kTable>
inline F scale_of(const Units& units, const std::uint8_t* unit, const std::uint8_t* super, std::size_t which,
                  const Looked& looked) {
  if constexpr (kTable) return scales_at(units, unit, super, which) * set1(looked.scale);
  return scales_at(units, unit, super, which);
}

template <int kRows, int kCount>
inline void start(I (&dot)[kRows][kCount], const std::int32_t* starts) {
  for (int b = 0; b < kCount; ++b) {
    const I one = iset1(starts[b]);
    for (int m = 0; m < kRows; ++m) dot[m][b] = one;
  }
}

template <int kRows, int kCount>
inline void add_offsets(F (&total)[kRows][kCount], const F (&offset)[kRows], const float* sums) {
  for (int b = 0; b < kCount; ++b) {
    const F sum = set1(sums[b]);
    for (int m = 0; m < kRows; ++m) total[m][b] = fma(offset[m], sum, total[m][b]);
  }
}

template <int kRows, int kCount>
inline void add_scaled(F (&total)[kRows][kCount], const I (&dot)[kRows][kCount], const F (&scale)[kRows],
                       const float* scales) {
  for (int b = 0; b < kCount; ++b) {
    const F by = set1(scales[b]);
    for (int m = 0; m < kRows; ++m) total[m][b] = fma(to_float(dot[m][b]), scale[m] * by, total[m][b]);
  }
}

// One of the two groups of 16 columns in a span.
template <int kBits, bool kTable, class Quads, int kRows, int kCount>
inline void add_half(Quads quads, std::size_t which, F (&total)[kRows][kCount], const Units& units,
                     const std::uint8_t* w, const std::uint8_t* super, std::size_t block, const Tile& x,
                     const Looked& looked) {
  const std::uint8_t* codes[kRows];
  for (int m = 0; m < kRows; ++m) codes[m] = w + static_cast<std::size_t>(m) * block + units.meta_bytes;
  I dot[kRows][kCount];
  start(dot, x.starts + which * kCount);
  add_quads<kBits, kTable>(quads, dot, codes, x.values, looked);
  F scale[kRows];
  for (int m = 0; m < kRows; ++m) {
    const std::size_t skipped = static_cast<std::size_t>(m) * block;
    scale[m] = scale_of<kTable>(units, w + skipped, super + skipped, which, looked);
  }
  add_scaled(total, dot, scale, x.scales);
  if (units.offsets == Offsets::none) return;
  F offset[kRows];
  for (int m = 0; m < kRows; ++m) {
    const std::size_t skipped = static_cast<std::size_t>(m) * block;
    offset[m] = offsets_at(units, w + skipped, super + skipped, which, scale[m]);
  }
  add_offsets(total, offset, x.sums + which * kCount);
}

// `to`: where the results of each block go.
template <int kBits, bool kTable, bool kHalves, int kRows, int kCount>
FERRULE_FLATTEN void small_tile(const Units& units, const std::uint8_t* w, std::size_t block, Tile x,
                                float* const (&to)[kRows], std::size_t stride, const Looked& looked) {
  constexpr std::size_t kSpanBytes = kBlockRows * kSpan * kBits / 8;
  F total[kRows][kCount];
  for (auto& row : total) {
    for (F& each : row) each = zero();
  }
  const auto next = [&] {
    x.values += kSpan * kCount;
    x.scales += kCount;
    x.starts += kSums * kCount;
    x.sums += kSums * kCount;
  };
  const std::uint8_t* super = w;
  for (std::size_t unit = 0, left = 0; unit < units.count; ++unit, --left, w += units.bytes) {
    if (left == 0) {
      super = w;
      w += units.super_bytes;
      left = units.per_super;
    }
    for (int m = 0; m < kRows; ++m) fetch<1>(w + static_cast<std::size_t>(m) * block);
    if constexpr (kHalves) {
      for (int m = 0; m < kRows; ++m) fetch<kSpanBytes>(w + static_cast<std::size_t>(m) * block + units.meta_bytes);
      add_half<kBits, kTable>(FirstQuads{}, 0, total, units, w, super, block, x, looked);
      add_half<kBits, kTable>(LastQuads{}, 1, total, units, w, super, block, x, looked);
      next();
    } else {
      F scale[kRows], offset[kRows];
      const std::uint8_t* codes[kRows];
      for (int m = 0; m < kRows; ++m) {
        const std::size_t skipped = static_cast<std::size_t>(m) * block;
        scale[m] = scale_of<kTable>(units, w + skipped, super + skipped, 0, looked);
        if (units.offsets != Offsets::none) offset[m] = offsets_at(units, w + skipped, super + skipped, 0, scale[m]);
        codes[m] = w + skipped + units.meta_bytes;
      }
      for (std::size_t n = 0; n < units.spans; ++n) {
        for (int m = 0; m < kRows; ++m) fetch<kSpanBytes>(codes[m]);
        I dot[kRows][kCount];
        start(dot, x.starts + 2 * kCount);
        add_quads<kBits, kTable>(FirstQuads{}, dot, codes, x.values, looked);
        add_quads<kBits, kTable>(LastQuads{}, dot, codes, x.values, looked);
        add_scaled(total, dot, scale, x.scales);
        if (units.offsets != Offsets::none) add_offsets(total, offset, x.sums + 2 * kCount);
        for (int m = 0; m < kRows; ++m) codes[m] += kSpanBytes;
        next();
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int b = 0; b < kCount; ++b) store(to[m] + static_cast<std::size_t>(b) * stride, total[m][b]);
  }
}

const std::uint8_t kFp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};
const std::uint8_t kIq4nlTable[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

template <int kBits, bool kTable, bool kHalves, int kRows, int kCount>
void some_blocks(const PackedMatrix& matrix, const Units& units, std::size_t bytes, std::size_t block, Tile x, float* y,
                 std::size_t stride, const Looked& looked) {
  float* to[kRows];
  for (int m = 0; m < kRows; ++m) to[m] = y + (block + static_cast<std::size_t>(m)) * kBlockRows;
  small_tile<kBits, kTable, kHalves, kRows, kCount>(units, matrix.data + block * bytes, bytes, x, to, stride, looked);
}

template <int kBits, bool kTable, bool kHalves>
void small_as(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
              std::size_t stride) {
  Looked looked{bytes(0), 1.0F};
  if constexpr (kTable) {
    const bool fp4 = matrix.layout.codes == Codes::fp4;  // its table holds twice the numbers
    looked = {less(table_of(fp4 ? kFp4Table : kIq4nlTable)), fp4 ? 0.5F : 1.0F};
  }
  const Units units = units_of(matrix.layout);
  const std::size_t bytes_of_block = matrix.layout.block_bytes();
  const std::size_t spans = x.columns / kSpan;
  const auto tile = [&](std::size_t at) {
    return Tile{static_cast<const std::int8_t*>(x.values) + at * x.columns, x.scales + at * spans,
                x.starts + at * spans * kSums, x.sums + at * spans * kSums};
  };
  for (std::size_t block = first; block < last;) {
    const std::size_t blocks = x.count > 1 && last - block >= kBlocks ? kBlocks : 1;
    for (std::size_t at = 0; at < x.count;) {
      const std::size_t count = tile_size(x.count - at, kCodesAtOnce);
      const auto some = [&]<int kCount>(Numbers<kCount>) {
        const auto run = blocks == 1 ? some_blocks<kBits, kTable, kHalves, 1, kCount>
                                     : some_blocks<kBits, kTable, kHalves, kBlocks, kCount>;
        run(matrix, units, bytes_of_block, block, tile(at), y + at * stride, stride, looked);
      };
      switch (count) {
        case 6:
          if constexpr (kCodesAtOnce >= 6) some(Numbers<6>{});
          break;
        case 4:
          if constexpr (kCodesAtOnce >= 4) some(Numbers<4>{});
          break;
        case 3:
          if constexpr (kCodesAtOnce >= 3) some(Numbers<3>{});
          break;
        case 2:
          some(Numbers<2>{});
          break;
        default:
          some(Numbers<1>{});
      }
      at += count;
    }
    block += blocks;
  }
}

template <int kBits, bool kTable>
void small_any(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
               std::size_t stride) {
  if (matrix.layout.group < kSpan) {
    small_as<kBits, kTable, true>(matrix, x, first, last, y, stride);
  } else {
    small_as<kBits, kTable, false>(matrix, x, first, last, y, stride);
  }
}

}  // namespace

namespace FERRULE_ISA {
extern const SmallTable small_products;
const SmallTable small_products = {
    {nullptr, nullptr, small_any<2, false>, small_any<3, false>, small_any<4, false>, small_any<5, false>,
     small_any<6, false>, nullptr, small_any<8, false>},
    small_any<4, true>,
    kCodesAtOnce,
    kLess,
};
}  // namespace FERRULE_ISA
}  // namespace ferrule
