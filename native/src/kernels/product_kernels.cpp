// Products of plain numbers, and activations in the forms that products take. CMake compiles this file several times,
// with FERRULE_ISA naming the instruction set.
//
// Lanes are rows: a vector of numbers belongs to 16 rows, an activation is the same in all lanes. Sums stay in
// registers over a whole row: kRows blocks by kCount activations at a time.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/product.h"

namespace ferrule {
namespace {

// Activations at a time, by how many sums the registers hold.
#if defined(__AVX512F__)
constexpr int kMost = 12;
#else
constexpr int kMost = 4;
#endif

// ---- activations

void to_f32(const float* x, std::size_t columns, std::size_t padded, const ConvertTo& to) {
  std::memcpy(to.values, x, columns * sizeof(float));
  std::memset(static_cast<float*>(to.values) + columns, 0, (padded - columns) * sizeof(float));
}

void to_bf16(const float* x, std::size_t columns, std::size_t padded, const ConvertTo& given) {
  auto* const to = static_cast<std::uint16_t*>(given.values);
  for (std::size_t at = 0; at < padded; at += 16) {
    float rest[16] = {};
    const float* from = x + at;
    if (at + 16 > columns) {
      if (at < columns) std::memcpy(rest, from, (columns - at) * sizeof(float));
      from = rest;
    }
    if (given.step == 1) {
      store_bf16(to + at, load(from));
      continue;
    }
    std::uint16_t narrow[16];
    store_bf16(narrow, load(from));
    for (std::size_t pair = 0; pair < 16; pair += 2) {
      std::memcpy(to + (at + pair) * given.step, narrow + pair, 2 * sizeof(std::uint16_t));
    }
  }
}

void to_int8(const float* x, std::size_t columns, std::size_t padded, const ConvertTo& to) {
  auto* const values = static_cast<std::int8_t*>(to.values);
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
    alignas(64) std::int8_t narrow[kSpan];
    store_int8(narrow, low);
    store_int8(narrow + 16, high);
    for (std::size_t quad = 0; quad < kSpan / kQuad; ++quad) {
      std::memcpy(values + (span * kSpan / kQuad + quad) * to.step * kQuad, narrow + quad * kQuad, kQuad);
    }
    const float scale = top / 127.0F;
    to.scales[span * to.step] = scale;
    const std::int32_t sums[kSums] = {sum(low), sum(high), sum(low) + sum(high)};
    for (std::size_t i = 0; i < kSums; ++i) {
      to.starts[(span * kSums + i) * to.step] = -to.zero * sums[i];
      to.sums[(span * kSums + i) * to.step] = static_cast<float>(sums[i]) * scale;
    }
  }
}

// ---- plain numbers

// kStep columns lie in 64 bytes (float32: 1, bfloat16 and float16: 2). Each sum runs over the columns in their order,
// whatever kRows and kCount are: a token's results do not depend on what else is in its batch.
template <class Element, int kRows, int kCount>
FERRULE_FLATTEN void plain_tile(const std::uint8_t* w, std::size_t block, std::size_t columns,
                                const typename Element::Input* x, std::size_t x_stride, float* y, std::size_t stride) {
  F total[kRows][kCount];
  for (auto& row : total) {
    for (F& each : row) each = zero();
  }
  for (std::size_t k = 0; k < columns; k += Element::kStep, w += 64) {
    typename Element::Some some[kRows];
    for (int m = 0; m < kRows; ++m) {
      __builtin_prefetch(w + static_cast<std::size_t>(m) * block + kAhead);
      some[m] = Element::read(w + static_cast<std::size_t>(m) * block);
    }
    for (int b = 0; b < kCount; ++b) {
      const auto* at = Element::kTiled ? x + k * kCount + static_cast<std::size_t>(b) * Element::kStep
                                       : x + static_cast<std::size_t>(b) * x_stride + k;
      for (int m = 0; m < kRows; ++m) total[m][b] = Element::add(total[m][b], some[m], at);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int b = 0; b < kCount; ++b) {
      store(y + static_cast<std::size_t>(b) * stride + static_cast<std::size_t>(m) * kBlockRows, total[m][b]);
    }
  }
}

struct Float32 {
  static constexpr bool kTiled = false;
  using Input = float;
  using Some = F;
  static constexpr std::size_t kStep = 1;
  static Some read(const std::uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static F add(F total, const Some& number, const float* x) { return fma(number, set1(*x), total); }
};

struct Float16 {
  static constexpr bool kTiled = false;
  using Input = float;
  struct Some {
    F first, second;
  };
  static constexpr std::size_t kStep = 2;
  static Some read(const std::uint8_t* p) { return {load_f16(p), load_f16(p + 32)}; }
  static F add(F total, const Some& numbers, const float* x) {
    return fma(numbers.second, set1(x[1]), fma(numbers.first, set1(x[0]), total));
  }
};

#ifdef FERRULE_BF16_PAIRS
struct BFloat16 {
  static constexpr bool kTiled = true;
  using Input = std::uint16_t;
  using Some = U;
  static constexpr std::size_t kStep = 2;
  static Some read(const std::uint8_t* p) { return load_bytes(p); }
  static F add(F total, const Some& pairs, const std::uint16_t* x) {
    std::uint32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return dot2(total, pairs, pair);
  }
};
constexpr bool kPairs = true;
#else
struct BFloat16 {
  static constexpr bool kTiled = false;
  using Input = float;
  using Some = U;
  static constexpr std::size_t kStep = 2;
  static Some read(const std::uint8_t* p) { return load_bytes(p); }
  static F add(F total, const Some& pairs, const float* x) {
    return fma(odd_bf16(pairs), set1(x[1]), fma(even_bf16(pairs), set1(x[0]), total));
  }
};
constexpr bool kPairs = false;
#endif

// Calls body(Numbers<n>) for the `count` that is among kCounts.
template <int... kCounts, class Body>
void with_count(Numbers<kCounts...>, std::size_t count, Body&& body) {
  ((count == kCounts ? body(Numbers<kCounts>{}) : void()), ...);
}

#if defined(__AVX512F__)
using EveryCount = Numbers<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
using SomeCounts = Numbers<1, 2, 3, 4, 12>;
#else
using EveryCount = Numbers<1, 2, 3, 4>;
using SomeCounts = EveryCount;
#endif

// Calls tile(rows, count, block, first activation) for all blocks and activations. One alone takes the blocks one by
// one, which reads memory best.
template <bool kTiled, class Tile>
void for_tiles(std::size_t first, std::size_t last, std::size_t count, Tile&& tile) {
  const auto columns = [&]<int kRows>(Numbers<kRows> rows, std::size_t block) {
    for (std::size_t b = 0, some = 0; b < count; b += some) {
      const auto run = [&]<int kCount>(Numbers<kCount> n) { tile(rows, n, block, b); };
      if constexpr (kTiled) {
        some = equal_tile_size(count - b, kMost);
        with_count(EveryCount{}, some, run);
      } else {
        some = tile_size(count - b, kMost);
        with_count(SomeCounts{}, some, run);
      }
    }
  };
  std::size_t block = first;
#if defined(__AVX512F__)  // registers for two blocks
  if (count > 1) {
    for (; block + 2 <= last; block += 2) columns(Numbers<2>{}, block);
  }
#endif
  for (; block < last; ++block) columns(Numbers<1>{}, block);
}

template <class Element>
void plain(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y,
           std::size_t stride) {
  const std::size_t block_bytes = matrix.layout.block_bytes();
  const std::size_t columns = matrix.layout.padded_columns();
  const auto* values = static_cast<const typename Element::Input*>(x.values);
  for_tiles<Element::kTiled>(
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
    kPairs, {to_f32, to_bf16, to_int8}, plain<BFloat16>, plain<Float16>, plain<Float32>, kMost,
};
}  // namespace FERRULE_ISA
}  // namespace ferrule
