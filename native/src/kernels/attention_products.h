// Products of attention: of some queries with pages of keys, and of their weights with pages of values. Lanes are
// tokens for the logits, numbers of a value for the sums. The order of each sum is the same whatever else is computed
// with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/rows.h"
#include "kernels/simd/simd.h"

namespace ferrule {
namespace {

constexpr std::size_t kMostGroups = kMostWidth / kCacheGroup;
constexpr auto kTokens = static_cast<std::int64_t>(kPageTokens);
constexpr std::int64_t kBlock = 4;  // pages
constexpr std::size_t kBlockTokens = kBlock * kPageTokens;

// Queries of a group, and vectors of sums, that the registers hold beside what is multiplied.
#if defined(__AVX512F__)
constexpr int kRows = 8, kSums = 16;
#elif defined(__AVX2__) || defined(FERRULE_NEON)
constexpr int kRows = 5, kSums = 5;
#else
constexpr int kRows = 4, kSums = 4;
#endif
// Vectors for each of `count` queries: 1, 2 or 4.
constexpr int side_by_side(int count) { return 4 * count <= kSums ? 4 : 2 * count <= kSums ? 2 : 1; }

template <Cached kCached>
F load_value(const std::uint8_t* p, std::size_t index) {
  if constexpr (kCached == Cached::f32) return load(reinterpret_cast<const float*>(p) + index);
  if constexpr (kCached == Cached::f16) return load_f16(p + 2 * index);
  if constexpr (kCached == Cached::int8) return load_i8(p + index);
  if constexpr (kCached == Cached::int4) {
    const std::uint8_t* const group = p + index / kCacheGroup * 16;
    return index % kCacheGroup < 16 ? load_i4<false>(group) : load_i4<true>(group);
  }
  return load_bf16(p + 2 * index);
}

template <class T>
constexpr T most(T a, T b) {
  return a < b ? b : a;
}
constexpr std::size_t groups_of(std::size_t width) { return (width + kCacheGroup - 1) / kCacheGroup; }

// Number k of 16 keys, or (kNext) the one behind it; k is even.
template <Cached kCached, bool kNext>
F load_key(const std::uint8_t* page, std::size_t k) {
  if constexpr (kCached != Cached::bf16) return load_value<kCached>(page, (k + kNext) * kPageTokens);
  const std::uint8_t* pairs = page + k / 2 * 64;
  if constexpr (kNext) {  // read again: registers are wanted for sums
    asm("" : "+r"(pairs));
    return odd_bf16(load_bytes(pairs));
  }
  return even_bf16(load_bytes(pairs));
}

#ifdef FERRULE_BF16_PAIRS
constexpr bool kPairs = true;
#else
constexpr bool kPairs = false;
#endif

// Logits, and then weights, of a group for the tokens of a block; and what sums so far are to be multiplied by.
struct Weights {
  alignas(64) float of[kRows][kBlockTokens];
  float by[kRows];
};

// Of the values of a page, as they lie there.
using Scales = float[kMostGroups * kPageTokens];

// The sum of each group of codes by itself, times its scale.
template <Cached kCached, int kCount, int kPages>
FERRULE_FLATTEN void logits_of_codes(std::size_t width, const float* queries, const std::uint8_t* const* keys,
                                     Weights& weights, std::size_t at) {
  constexpr std::size_t kBytes = kCacheGroup * kPageTokens * code_bits(kCached) / 8;
  const std::size_t groups = groups_of(width);
  for (std::size_t group = 0; group < groups; ++group, queries += kCacheGroup * kCount) {
    F sums[kCount][kPages];
    for (int t = 0; t < kCount; ++t) {
      for (int p = 0; p < kPages; ++p) sums[t][p] = zero();
    }
    const auto add = [&](const F(&key)[kPages], std::size_t k) {
      for (int t = 0; t < kCount; ++t) {
        const F query = set1(queries[k * kCount + t]);
        for (int p = 0; p < kPages; ++p) sums[t][p] = fma(key[p], query, sums[t][p]);
      }
    };
    for (std::size_t k = 0; k < 16; ++k) {
      F low[kPages], high[kPages];
      for (int p = 0; p < kPages; ++p) {
        const std::uint8_t* const codes = keys[p] + group * kBytes + k * kPageTokens;
        if constexpr (kCached == Cached::int8) {
          low[p] = load_i8(codes);
          high[p] = load_i8(codes + 16 * kPageTokens);
        } else {
          low[p] = load_i4<false>(codes);
          high[p] = load_i4<true>(codes);
        }
      }
      add(low, k);
      add(high, k + 16);
    }
    for (int p = 0; p < kPages; ++p) {
      const F scale = load_f16(keys[p] + groups * kBytes + group * 2 * kPageTokens);
      for (int t = 0; t < kCount; ++t) {
        float* const logits = weights.of[t] + at + p * kPageTokens;
        store(logits, group == 0 ? sums[t][p] * scale : fma(sums[t][p], scale, load(logits)));
      }
    }
  }
}

template <Cached kCached, int kCount, int kPages>
FERRULE_FLATTEN void logits_of_numbers(std::size_t width, const float* queries, const std::uint8_t* const* keys,
                                       Weights& weights, std::size_t at) {
  F sums[kCount][kPages];
  for (int t = 0; t < kCount; ++t) {
    for (int p = 0; p < kPages; ++p) sums[t][p] = zero();
  }
  for (std::size_t k = 0; k < width; k += 2, queries += 2 * kCount) {
    if constexpr (kCached == Cached::bf16 && kPairs) {
#ifdef FERRULE_BF16_PAIRS
      U key[kPages];
      for (int p = 0; p < kPages; ++p) key[p] = load_bytes(keys[p] + k / 2 * 64);
      for (int t = 0; t < kCount; ++t) {
        std::uint32_t two;
        std::memcpy(&two, queries + t, sizeof two);
        for (int p = 0; p < kPages; ++p) sums[t][p] = dot2(sums[t][p], key[p], two);
      }
#endif
    } else {
      const auto add = [&](const F(&key)[kPages], const float* query) {
        for (int t = 0; t < kCount; ++t) {
          const F one = set1(query[t]);
          for (int p = 0; p < kPages; ++p) sums[t][p] = fma(key[p], one, sums[t][p]);
        }
      };
      F key[kPages];
      for (int p = 0; p < kPages; ++p) key[p] = load_key<kCached, false>(keys[p], k);
      add(key, queries);
      for (int p = 0; p < kPages; ++p) key[p] = load_key<kCached, true>(keys[p], k);
      add(key, queries + kCount);
    }
  }
  for (int t = 0; t < kCount; ++t) {
    for (int p = 0; p < kPages; ++p) store(weights.of[t] + at + p * kPageTokens, sums[t][p]);
  }
}

template <Cached kCached, int kCount, int kPages>
void logits_of(std::size_t width, const float* queries, const std::uint8_t* const* keys, Weights& weights,
               std::int64_t page) {
  const auto at = static_cast<std::size_t>(page) * kPageTokens;
  if constexpr (has_codes(kCached)) {
    logits_of_codes<kCached, kCount, kPages>(width, queries, keys + page, weights, at);
  } else {
    logits_of_numbers<kCached, kCount, kPages>(width, queries, keys + page, weights, at);
  }
}

// Add the values of some pages by weight to numbers `from` of the results on, kParts vectors of each. `tokens` of them:
// those behind the last one have not been written, and whatever is there must not come into the sums.
template <Cached kCached, int kCount, int kParts>
FERRULE_FLATTEN void add_values(std::size_t width, float* const* to, const std::uint8_t* const* pages,
                                const Scales* scales, const Weights& weights, std::size_t tokens, std::size_t from) {
  F out[kCount][kParts];
  for (int t = 0; t < kCount; ++t) {
    for (int p = 0; p < kParts; ++p) out[t][p] = load(to[t] + from + 16 * p) * set1(weights.by[t]);
  }
  for (std::size_t first = 0; first < tokens; first += kPageTokens) {
    const std::uint8_t* const values = pages[first / kPageTokens];
    const std::size_t some = least(kPageTokens, tokens - first);
    for (std::size_t j = 0; j < some; ++j) {
      F value[kParts];
      for (int p = 0; p < kParts; ++p) {
        const std::size_t index = j * width + from + 16 * p;
        value[p] = load_value<kCached>(values, index);
        if constexpr (has_codes(kCached)) {
          value[p] = value[p] * set1(scales[first / kPageTokens][index / kCacheGroup]);
        }
      }
      for (int t = 0; t < kCount; ++t) {
        const F weight = set1(weights.of[t][first + j]);
        for (int p = 0; p < kParts; ++p) out[t][p] = fma(weight, value[p], out[t][p]);
      }
    }
  }
  for (int t = 0; t < kCount; ++t) {
    for (int p = 0; p < kParts; ++p) store(to[t] + from + 16 * p, out[t][p]);
  }
}

}  // namespace
}  // namespace ferrule
