// Products of groups of codes as the numbers that they stand for, with activations as float32. CMake compiles this file
// several times, with FERRULE_ISA naming the instruction set.
#include <cstddef>
#include <cstdint>

#include "kernels/codes.h"
#include "kernels/product.h"

namespace ferrule {
namespace {

#if defined(FERRULE_NEON)  // of which sums of eight would take all registers
constexpr int kAtOnce = 4;
#else
constexpr int kAtOnce = 8;
#endif

template <Codes kCodes>
inline F value_of(I code, const MatrixLayout& layout, const float* table) {
  if constexpr (kCodes == Codes::integer) return to_float(code + iset1(-layout.zero));
  if constexpr (kCodes == Codes::e4m3) return float8<3>(code);
  if constexpr (kCodes == Codes::e5m2) return float8<2>(code);
  return pick(table, code);
}

template <Codes kCodes, int kBits, int kCount, int... kQuads>
inline void exact_quads(Numbers<kQuads...>, F (&sums)[kCount], const std::uint8_t* span, const float* x,
                        std::size_t columns, const MatrixLayout& layout, const float* table) {
  const auto one = [&]<int kAt>(Numbers<kAt>) {
    const U codes = quad<kBits, kAt>(span);
    const auto column = [&]<int kByte>(Numbers<kByte>) {
      const F number = value_of<kCodes>(lane<kByte>(codes), layout, table);
      for (int b = 0; b < kCount; ++b) {
        sums[b] = fma(number, set1(x[static_cast<std::size_t>(b) * columns + 4 * kAt + kByte]), sums[b]);
      }
    };
    column(Numbers<0>{});
    column(Numbers<1>{});
    column(Numbers<2>{});
    column(Numbers<3>{});
  };
  (one(Numbers<kQuads>{}), ...);
}

template <Codes kCodes, int kBits, int kCount>
FERRULE_FLATTEN void exact_tile(const MatrixLayout& layout, const Units& units, const std::uint8_t* w,
                                const Activations& x, std::size_t first, float* y, std::size_t stride,
                                const float* table) {
  constexpr std::size_t kSpanBytes = kBlockRows * kSpan * kBits / 8;
  const auto* values = static_cast<const float*>(x.values) + first * x.columns;
  F total[kCount];
  for (F& each : total) each = zero();
  const std::uint8_t* super = w;
  for (std::size_t unit = 0, left = 0; unit < units.count; ++unit, --left, w += units.bytes) {
    if (left == 0) {
      super = w;
      w += units.super_bytes;
      left = units.per_super;
    }
    fetch<1>(w);
    const float* at = values + unit * units.columns;
    const auto close = [&](F(&sums)[kCount], std::size_t which, std::size_t start, std::size_t length) {
      const F scale = scales_at(units, w, super, which);
      for (int b = 0; b < kCount; ++b) total[b] = fma(sums[b], scale, total[b]);
      if (units.offsets == Offsets::none) return;
      const F offset = offsets_at(units, w, super, which, scale);
      for (int b = 0; b < kCount; ++b) {
        float added = 0;
        for (std::size_t k = 0; k < length; ++k) added += at[static_cast<std::size_t>(b) * x.columns + start + k];
        total[b] = fma(offset, set1(added), total[b]);
      }
    };
    const std::uint8_t* span = w + units.meta_bytes;
    F sums[kCount];
    for (F& each : sums) each = zero();
    if (units.scales == 2) {
      fetch<kSpanBytes>(span);
      exact_quads<kCodes, kBits>(FirstQuads{}, sums, span, at, x.columns, layout, table);
      close(sums, 0, 0, kSpan / 2);
      for (F& each : sums) each = zero();
      exact_quads<kCodes, kBits>(LastQuads{}, sums, span, at, x.columns, layout, table);
      close(sums, 1, kSpan / 2, kSpan / 2);
      continue;
    }
    for (std::size_t n = 0; n < units.spans; ++n, span += kSpanBytes) {
      fetch<kSpanBytes>(span);
      exact_quads<kCodes, kBits>(FirstQuads{}, sums, span, at + n * kSpan, x.columns, layout, table);
      exact_quads<kCodes, kBits>(LastQuads{}, sums, span, at + n * kSpan, x.columns, layout, table);
    }
    close(sums, 0, 0, units.columns);
  }
  for (int b = 0; b < kCount; ++b) store(y + static_cast<std::size_t>(b) * stride, total[b]);
}

const float kNf4[16] = {-1.0F,         -0.69619280F, -0.52507305F, -0.39491749F, -0.28444138F, -0.18477343F,
                        -0.091050036F, 0.0F,         0.079580300F, 0.16093020F,  0.24611230F,  0.33791524F,
                        0.44070983F,   0.56261700F,  0.72295684F,  1.0F};
const float kFp4[16] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
const float kIq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

template <Codes kCodes, int kBits>
void exact_as(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
              std::size_t stride) {
  const MatrixLayout& layout = matrix.layout;
  const float* table = layout.codes == Codes::nf4 ? kNf4 : layout.codes == Codes::fp4 ? kFp4 : kIq4nl;
  const Units units = units_of(layout);
  const std::size_t bytes_of_block = layout.block_bytes();
  for (std::size_t block = first; block < last; ++block) {
    const std::uint8_t* w = matrix.data + block * bytes_of_block;
    float* to = y + block * kBlockRows;
    std::size_t b = 0;
    for (; b + kAtOnce <= x.count; b += kAtOnce) {
      exact_tile<kCodes, kBits, kAtOnce>(layout, units, w, x, b, to + b * stride, stride, table);
    }
    for (; b < x.count; ++b) exact_tile<kCodes, kBits, 1>(layout, units, w, x, b, to + b * stride, stride, table);
  }
}

void exact_any(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
               std::size_t stride) {
  const auto run = [&](ProductFunction function) { function(matrix, x, first, last, y, stride); };
  switch (matrix.layout.codes) {
    case Codes::integer:
      switch (matrix.layout.bits) {
        case 2:
          return run(exact_as<Codes::integer, 2>);
        case 3:
          return run(exact_as<Codes::integer, 3>);
        case 4:
          return run(exact_as<Codes::integer, 4>);
        case 5:
          return run(exact_as<Codes::integer, 5>);
        case 6:
          return run(exact_as<Codes::integer, 6>);
        default:
          return run(exact_as<Codes::integer, 8>);
      }
    case Codes::e4m3:
      return run(exact_as<Codes::e4m3, 8>);
    case Codes::e5m2:
      return run(exact_as<Codes::e5m2, 8>);
    default:
      return run(exact_as<Codes::nf4, 4>);  // any table of 16 numbers
  }
}

}  // namespace

namespace FERRULE_ISA {
void exact(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
           std::size_t stride);
void exact(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
           std::size_t stride) {
  exact_any(matrix, x, first, last, y, stride);
}
}  // namespace FERRULE_ISA
}  // namespace ferrule
