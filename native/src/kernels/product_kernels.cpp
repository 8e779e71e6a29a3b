// The loops of products. CMake compiles this file several times, with FERRULE_ISA naming the instruction set.
//
// Lanes are rows: a vector of codes or numbers belongs to 16 rows, an activation is the same in all lanes. Sums stay in
// registers over a whole row: kRows blocks by kCount activations at a time.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/product.h"
#include "kernels/simd/simd.h"

namespace ferrule {
namespace {

constexpr std::size_t kAhead = 4096;  // bytes that are fetched ahead of use
// Activations at a time, by how many sums the registers hold.
#if defined(__AVX512F__)
constexpr int kMostCodes = 5, kMostPlain = 12, kHalfPlain = 4;
#else
constexpr int kMostCodes = 2, kMostPlain = 4, kHalfPlain = 2;
#endif

inline void fetch(const std::uint8_t* p, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + kAhead + at);
}

F scales_at(ScaleKind kind, const std::uint8_t* p) {
  if (kind == ScaleKind::f16) return load_f16(p);
  if (kind == ScaleKind::bf16) return load_bf16(p);
  if (kind == ScaleKind::f32) return load(reinterpret_cast<const float*>(p));
  return load_e8m0(p);
}

// What is added to the numbers of a group, whose scale is `scale`.
F offsets_at(const MatrixLayout& layout, const std::uint8_t* meta, std::size_t which, F scale) {
  const std::uint8_t* const at = meta + layout.offset_start(which);
  if (layout.offsets == Offsets::zero_points) return zero() - load_u8(at) * scale;
  return scales_at(layout.scale, at);
}

// ---- activations

void to_f32(const float* x, std::size_t columns, std::size_t padded, void* values, float*, std::int32_t*) {
  std::memcpy(values, x, columns * sizeof(float));
  std::memset(static_cast<float*>(values) + columns, 0, (padded - columns) * sizeof(float));
}

void to_bf16(const float* x, std::size_t columns, std::size_t padded, void* values, float*, std::int32_t*) {
  auto* to = static_cast<std::uint16_t*>(values);
  std::size_t at = 0;
  for (; at + 16 <= columns; at += 16) store_bf16(to + at, load(x + at));
  if (at < padded) {
    float rest[16] = {};
    std::uint16_t narrow[16];
    for (; at < padded; at += 16) {
      const std::size_t left = at < columns ? columns - at : 0;
      std::memset(rest, 0, sizeof rest);
      std::memcpy(rest, x + least(at, columns), least<std::size_t>(left, 16) * sizeof(float));
      store_bf16(narrow, load(rest));
      std::memcpy(to + at, narrow, least<std::size_t>(padded - at, 16) * sizeof(std::uint16_t));
    }
  }
}

void to_int8(const float* x, std::size_t columns, std::size_t padded, void* values, float* scales, std::int32_t* sums) {
  auto* to = static_cast<std::int8_t*>(values);
  for (std::size_t span = 0; span < padded / kSpan; ++span) {
    float rest[kSpan];
    const float* from = x + span * kSpan;
    if ((span + 1) * kSpan > columns) {
      std::memset(rest, 0, sizeof rest);
      if (span * kSpan < columns) std::memcpy(rest, from, (columns - span * kSpan) * sizeof(float));
      from = rest;
    }
    const F a = load(from);
    const F b = load(from + 16);
    const float top = highest(max(abs(a), abs(b)));
    const F inverse = set1(top > 0 ? 127.0F / top : 0);
    const I low = to_int(a * inverse);
    const I high = to_int(b * inverse);
    store_int8(to + span * kSpan, low);
    store_int8(to + span * kSpan + 16, high);
    scales[span] = top / 127.0F;
    sums[kSums * span] = sum(low);
    sums[kSums * span + 1] = sum(high);
    sums[kSums * span + 2] = sums[kSums * span] + sums[kSums * span + 1];
  }
}

// ---- groups of codes

// The codes of quad kQuad of a span, a byte for each row and column.
template <int kBits, int kQuad>
inline U quad(const std::uint8_t* span) {
  constexpr int kLow = kBits == 3 ? 2 : kBits == 5 || kBits == 6 ? 4 : kBits;
  constexpr int kHigh = kBits - kLow;
  constexpr int kPer = 8 / kLow;  // quads in a vector of low bits
  constexpr int kShift = kLow * (kQuad % kPer);
  U codes = load_bytes(span + kQuad / kPer * 64);
  if constexpr (kShift != 0) codes = right<kShift>(codes);
  if constexpr (kLow != 8) codes = codes & bytes((1 << kLow) - 1);
  if constexpr (kHigh != 0) {
    constexpr int kPerHigh = 8 / kHigh;
    constexpr int kFrom = kHigh * (kQuad % kPerHigh);  // where its high bits are, and where they belong
    U high = load_bytes(span + 64 * kLow + kQuad / kPerHigh * 64);
    if constexpr (kFrom < kLow) high = left<kLow - kFrom>(high);
    if constexpr (kFrom > kLow) high = right<kFrom - kLow>(high);
    codes = codes | (high & bytes(((1 << kHigh) - 1) << kLow));
  }
  return codes;
}

template <int... kNumbers>
struct Numbers {};
using FirstQuads = Numbers<0, 1, 2, 3>;
using LastQuads = Numbers<4, 5, 6, 7>;

inline std::int32_t four_at(const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, sizeof four);
  return four;
}

// What codes stand for: where they are looked up, bytes of a table. `scale`: of what they stand for.
struct Looked {
  U table;
  std::int32_t zero;  // the code, or byte, that means zero
  int shift;          // zero is 1 << shift; -1: it is no power of two
  float scale;
};

// What sums begin with, so that codes count from their zero.
inline I start_of(const std::int32_t* sum, const Looked& looked) {
  if (looked.shift >= 0) return minus_shifted(*sum, looked.shift);
  return iset1(-looked.zero * *sum);
}

template <int kBits, bool kTable, int kRows, int kCount, int... kQuads>
inline void add_quads(Numbers<kQuads...>, I (&dot)[kRows][kCount], const std::uint8_t* const (&span)[kRows],
                      const std::int8_t* x, std::size_t columns, const Looked& looked) {
  const auto one = [&]<int kAt>(Numbers<kAt>) {
    U codes[kRows];
    for (int m = 0; m < kRows; ++m) {
      codes[m] = quad<kBits, kAt>(span[m]);
      if constexpr (kTable) codes[m] = lookup(looked.table, codes[m]);
    }
    for (int b = 0; b < kCount; ++b) {
      const std::int32_t four = four_at(x + static_cast<std::size_t>(b) * columns + 4 * kAt);
      for (int m = 0; m < kRows; ++m) dot[m][b] = dot4 < kTable ? 8 : kBits > (dot[m][b], codes[m], four);
    }
  };
  (one(Numbers<kQuads>{}), ...);
}

template <int kBits, bool kTable, int kRows, int kCount>
void small_tile(const MatrixLayout& layout, const std::uint8_t* w, const Activations& x, std::size_t first, float* y,
                std::size_t stride, const Looked& looked) {
  const std::size_t block = layout.block_bytes();
  const std::size_t unit_bytes = layout.meta_bytes() + layout.unit() / kSpan * layout.span_bytes();
  const std::size_t spans = layout.unit() / kSpan;
  const std::size_t all_spans = x.columns / kSpan;
  const std::size_t scale_bytes = layout.scale_bytes();
  const bool halves = layout.group < kSpan;
  const auto* values = static_cast<const std::int8_t*>(x.values) + first * x.columns;
  const float* x_scales = x.scales + first * all_spans;
  const std::int32_t* x_sums = x.sums + first * kSums * all_spans;
  F total[kRows][kCount];
  for (auto& row : total) {
    for (F& each : row) each = zero();
  }
  std::size_t span = 0;
  for (std::size_t unit = 0; unit < layout.groups(); ++unit, w += unit_bytes) {
    for (int m = 0; m < kRows; ++m) fetch(w + static_cast<std::size_t>(m) * block, unit_bytes);
    if (halves) {
      const std::uint8_t* codes[kRows];
      for (int m = 0; m < kRows; ++m) codes[m] = w + static_cast<std::size_t>(m) * block + layout.meta_bytes();
      const auto half = [&]<class Quads>(Quads quads, std::size_t which) {
        I dot[kRows][kCount];
        float sums[kCount];
        for (int b = 0; b < kCount; ++b) {
          const std::int32_t* added = x_sums + (static_cast<std::size_t>(b) * all_spans + span) * kSums + which;
          const float scale = x_scales[static_cast<std::size_t>(b) * all_spans + span];
          sums[b] = static_cast<float>(*added) * scale;
          for (int m = 0; m < kRows; ++m) dot[m][b] = start_of(added, looked);
        }
        add_quads<kBits, kTable>(quads, dot, codes, values + span * kSpan, x.columns, looked);
        for (int m = 0; m < kRows; ++m) {
          const std::uint8_t* meta = w + static_cast<std::size_t>(m) * block;
          const F scale = scales_at(layout.scale, meta + which * scale_bytes);
          for (int b = 0; b < kCount; ++b) {
            const float by = x_scales[static_cast<std::size_t>(b) * all_spans + span] * looked.scale;
            total[m][b] = fma(to_float(dot[m][b]), scale * set1(by), total[m][b]);
            if (layout.offsets != Offsets::none) {
              const F offset = offsets_at(layout, meta, which, scale);
              total[m][b] = fma(offset, set1(sums[b]), total[m][b]);
            }
          }
        }
      };
      half(FirstQuads{}, 0);
      half(LastQuads{}, 1);
      ++span;
      continue;
    }
    F scale[kRows], offset[kRows];
    const std::uint8_t* codes[kRows];
    for (int m = 0; m < kRows; ++m) {
      const std::uint8_t* meta = w + static_cast<std::size_t>(m) * block;
      scale[m] = scales_at(layout.scale, meta);
      if constexpr (kTable) scale[m] = scale[m] * set1(looked.scale);
      offset[m] = layout.offsets == Offsets::none ? zero() : offsets_at(layout, meta, 0, scale[m]);
      codes[m] = meta + layout.meta_bytes();
    }
    for (std::size_t n = 0; n < spans; ++n, ++span) {
      I dot[kRows][kCount];
      for (int b = 0; b < kCount; ++b) {
        const I start = start_of(x_sums + (static_cast<std::size_t>(b) * all_spans + span) * kSums + 2, looked);
        for (int m = 0; m < kRows; ++m) dot[m][b] = start;
      }
      add_quads<kBits, kTable>(FirstQuads{}, dot, codes, values + span * kSpan, x.columns, looked);
      add_quads<kBits, kTable>(LastQuads{}, dot, codes, values + span * kSpan, x.columns, looked);
      for (int b = 0; b < kCount; ++b) {
        const float by = x_scales[static_cast<std::size_t>(b) * all_spans + span];
        for (int m = 0; m < kRows; ++m) {
          total[m][b] = fma(to_float(dot[m][b]), scale[m] * set1(by), total[m][b]);
        }
        if (layout.offsets != Offsets::none) {
          const std::int32_t added = x_sums[(static_cast<std::size_t>(b) * all_spans + span) * kSums + 2];
          const F sums = set1(static_cast<float>(added) * by);
          for (int m = 0; m < kRows; ++m) total[m][b] = fma(offset[m], sums, total[m][b]);
        }
      }
      for (int m = 0; m < kRows; ++m) codes[m] += layout.span_bytes();
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int b = 0; b < kCount; ++b) {
      store(y + static_cast<std::size_t>(b) * stride + static_cast<std::size_t>(m) * kBlockRows, total[m][b]);
    }
  }
}

// Calls tile(rows, count, block, first activation) for all blocks and activations: kMost activations at a time, and for
// one alone kAlone blocks at a time.
template <int kMost, int kHalf, int kAlone, class Tile>
void for_tiles(std::size_t first, std::size_t last, std::size_t count, Tile&& tile) {
  const auto columns = [&]<int kRows>(Numbers<kRows> rows, std::size_t block) {
    std::size_t b = 0;
    for (; b + kMost <= count; b += kMost) tile(rows, Numbers<kMost>{}, block, b);
    for (; b + kHalf <= count; b += kHalf) tile(rows, Numbers<kHalf>{}, block, b);
    for (; b < count; ++b) tile(rows, Numbers<1>{}, block, b);
  };
  std::size_t block = first;
  if (count == 1) {
    for (; block + kAlone <= last; block += kAlone) tile(Numbers<kAlone>{}, Numbers<1>{}, block, 0);
    for (; block < last; ++block) tile(Numbers<1>{}, Numbers<1>{}, block, 0);
    return;
  }
#if defined(__AVX512F__)  // registers for two blocks
  for (; block + 2 <= last; block += 2) columns(Numbers<2>{}, block);
#endif
  for (; block < last; ++block) columns(Numbers<1>{}, block);
}

const std::uint8_t kFp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};
const std::uint8_t kIq4nlTable[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

template <int kBits, bool kTable>
void small(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
           std::size_t stride) {
  const MatrixLayout& layout = matrix.layout;
  Looked looked{bytes(0), layout.zero, -1, 1.0F};
  if constexpr (kTable) {
    const bool fp4 = layout.codes == Codes::fp4;  // its table holds twice the numbers
    looked = {table_of(fp4 ? kFp4Table : kIq4nlTable), 128, -1, fp4 ? 0.5F : 1.0F};
  }
  for (int shift = 0; shift < 8; ++shift) {
    if (looked.zero == 1 << shift) looked.shift = shift;
  }
  const std::size_t bytes_of_block = layout.block_bytes();
  for_tiles<kMostCodes, 2, 1>(
      first, last, x.count,
      [&]<int kRows, int kCount>(Numbers<kRows>, Numbers<kCount>, std::size_t block, std::size_t b) {
        small_tile<kBits, kTable, kRows, kCount>(layout, matrix.data + block * bytes_of_block, x, b,
                                                 y + b * stride + block * kBlockRows, stride, looked);
      });
}

// ---- groups of codes as the numbers they stand for, with activations as float32

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
void exact_tile(const MatrixLayout& layout, const std::uint8_t* w, const Activations& x, std::size_t first, float* y,
                std::size_t stride, const float* table) {
  const std::size_t unit_bytes = layout.meta_bytes() + layout.unit() / kSpan * layout.span_bytes();
  const std::size_t per_unit = layout.scales_per_unit();
  const auto* values = static_cast<const float*>(x.values) + first * x.columns;
  F total[kCount];
  for (F& each : total) each = zero();
  for (std::size_t unit = 0; unit < layout.groups(); ++unit, w += unit_bytes) {
    fetch(w, unit_bytes);
    const float* at = values + unit * layout.unit();
    const auto close = [&](F(&sums)[kCount], std::size_t which, std::size_t start, std::size_t length) {
      const F scale = scales_at(layout.scale, w + which * layout.scale_bytes());
      for (int b = 0; b < kCount; ++b) total[b] = fma(sums[b], scale, total[b]);
      if (layout.offsets == Offsets::none) return;
      const F offset = offsets_at(layout, w, which, scale);
      for (int b = 0; b < kCount; ++b) {
        float added = 0;
        for (std::size_t k = 0; k < length; ++k) added += at[static_cast<std::size_t>(b) * x.columns + start + k];
        total[b] = fma(offset, set1(added), total[b]);
      }
    };
    const std::uint8_t* span = w + layout.meta_bytes();
    F sums[kCount];
    for (F& each : sums) each = zero();
    if (per_unit == 2) {
      exact_quads<kCodes, kBits>(FirstQuads{}, sums, span, at, x.columns, layout, table);
      close(sums, 0, 0, kSpan / 2);
      for (F& each : sums) each = zero();
      exact_quads<kCodes, kBits>(LastQuads{}, sums, span, at, x.columns, layout, table);
      close(sums, 1, kSpan / 2, kSpan / 2);
      continue;
    }
    for (std::size_t n = 0; n < layout.unit() / kSpan; ++n, span += layout.span_bytes()) {
      exact_quads<kCodes, kBits>(FirstQuads{}, sums, span, at + n * kSpan, x.columns, layout, table);
      exact_quads<kCodes, kBits>(LastQuads{}, sums, span, at + n * kSpan, x.columns, layout, table);
    }
    close(sums, 0, 0, layout.unit());
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
  const std::size_t bytes_of_block = layout.block_bytes();
  for (std::size_t block = first; block < last; ++block) {
    const std::uint8_t* w = matrix.data + block * bytes_of_block;
    float* to = y + block * kBlockRows;
    std::size_t b = 0;
    for (; b + 8 <= x.count; b += 8) exact_tile<kCodes, kBits, 8>(layout, w, x, b, to + b * stride, stride, table);
    for (; b < x.count; ++b) exact_tile<kCodes, kBits, 1>(layout, w, x, b, to + b * stride, stride, table);
  }
}

void exact(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
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

// ---- plain numbers

// kStep columns lie in 64 bytes (float32: 1, bfloat16 and float16: 2). Each sum runs over the columns in their order,
// whatever kRows and kCount are: a token's results do not depend on what else is in its batch.
template <class Element, int kRows, int kCount>
void plain_tile(const std::uint8_t* w, std::size_t block, std::size_t columns, const typename Element::Input* x,
                std::size_t x_stride, float* y, std::size_t stride) {
  F total[kRows][kCount];
  for (auto& row : total) {
    for (F& each : row) each = zero();
  }
  for (std::size_t k = 0; k < columns; k += Element::kStep, w += 64) {
    U number[kRows];
    for (int m = 0; m < kRows; ++m) {
      __builtin_prefetch(w + static_cast<std::size_t>(m) * block + kAhead);
      number[m] = load_bytes(w + static_cast<std::size_t>(m) * block);
    }
    for (int b = 0; b < kCount; ++b) {
      const auto* at = x + static_cast<std::size_t>(b) * x_stride + k;
      for (int m = 0; m < kRows; ++m) total[m][b] = Element::add(total[m][b], number[m], at);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int b = 0; b < kCount; ++b) {
      store(y + static_cast<std::size_t>(b) * stride + static_cast<std::size_t>(m) * kBlockRows, total[m][b]);
    }
  }
}

struct Float32 {
  using Input = float;
  static constexpr std::size_t kStep = 1;
  static F add(F total, const U& number, const float* x) {
    float lanes[16];
    std::memcpy(lanes, &number, sizeof lanes);
    return fma(load(lanes), set1(*x), total);
  }
};

struct Float16 {
  using Input = float;
  static constexpr std::size_t kStep = 2;
  static F add(F total, const U& number, const float* x) {
    std::uint16_t lanes[32];
    std::memcpy(lanes, &number, sizeof lanes);
    return fma(load_f16(lanes + 16), set1(x[1]), fma(load_f16(lanes), set1(x[0]), total));
  }
};

#ifdef FERRULE_BF16_PAIRS
struct BFloat16 {
  using Input = std::uint16_t;
  static constexpr std::size_t kStep = 2;
  static F add(F total, const U& number, const std::uint16_t* x) {
    std::uint32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return dot2(total, number, pair);
  }
};
constexpr bool kPairs = true;
#else
struct BFloat16 {
  using Input = float;
  static constexpr std::size_t kStep = 2;
  static F add(F total, const U& number, const float* x) {
    return fma(odd_bf16(number), set1(x[1]), fma(even_bf16(number), set1(x[0]), total));
  }
};
constexpr bool kPairs = false;
#endif

template <class Element>
void plain(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
           std::size_t stride) {
  const std::size_t block_bytes = matrix.layout.block_bytes();
  const std::size_t columns = matrix.layout.padded_columns();
  const auto* values = static_cast<const typename Element::Input*>(x.values);
  for_tiles<kMostPlain, kHalfPlain, 4>(
      first, last, x.count,
      [&]<int kRows, int kCount>(Numbers<kRows>, Numbers<kCount>, std::size_t block, std::size_t b) {
        plain_tile<Element, kRows, kCount>(matrix.data + block * block_bytes, block_bytes, columns,
                                           values + b * x.columns, x.columns, y + b * stride + block * kBlockRows,
                                           stride);
      });
}

}  // namespace

namespace FERRULE_ISA {
extern const ProductTable products;
const ProductTable products = {
    kPairs,
    {to_f32, to_bf16, to_int8},
    plain<BFloat16>,
    plain<Float16>,
    plain<Float32>,
    {nullptr, nullptr, small<2, false>, small<3, false>, small<4, false>, small<5, false>, small<6, false>, nullptr,
     small<8, false>},
    small<4, true>,
    exact,
};
}  // namespace FERRULE_ISA
}  // namespace ferrule
