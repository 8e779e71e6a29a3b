// Attention over pages of 16 tokens: lanes are tokens for the logits, numbers of a value for the sums. A page is read
// once for all queries of a tile; the softmax runs along (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018). CMake compiles this file several times, with FERRULE_ISA naming the instruction set.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/rows.h"
#include "kernels/simd/simd.h"

namespace ferrule {
namespace {

constexpr float kNever = -1e30F;
constexpr std::size_t kMostGroups = kMostWidth / kCacheGroup;

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

constexpr std::size_t groups_of(std::size_t width) { return (width + kCacheGroup - 1) / kCacheGroup; }

#ifdef FERRULE_BF16_PAIRS
constexpr bool kPairs = true;
#else
constexpr bool kPairs = false;
#endif

// The queries of a tile in the form that products with keys take.
struct Queries {
  alignas(64) float numbers[kMostQueries][kMostWidth];
  alignas(64) std::uint16_t narrow[kMostQueries][kMostWidth];
};

// The sum of each group by itself, times its scale.
template <Cached kCached, int kCount>
FERRULE_FLATTEN void logits_of_codes(const AttentionTile& tile, const Queries& queries, const std::uint8_t* keys,
                                     F (&logits)[kCount]) {
  constexpr std::size_t kBytes = kCacheGroup * kPageTokens * code_bits(kCached) / 8;
  const std::size_t groups = groups_of(tile.width);
  for (int t = 0; t < kCount; ++t) logits[t] = zero();
  for (std::size_t group = 0; group < groups; ++group) {
    const std::uint8_t* const codes = keys + group * kBytes;
    F sums[kCount];
    for (int t = 0; t < kCount; ++t) sums[t] = zero();
    const auto one = [&](F key, std::size_t k) {
      for (int t = 0; t < kCount; ++t) sums[t] = fma(key, set1(queries.numbers[t][group * kCacheGroup + k]), sums[t]);
    };
    for (std::size_t k = 0; k < 16; ++k) {
      if constexpr (kCached == Cached::int8) {
        one(load_i8(codes + k * kPageTokens), k);
        one(load_i8(codes + (k + 16) * kPageTokens), k + 16);
      } else {
        one(load_i4<false>(codes + k * kPageTokens), k);
        one(load_i4<true>(codes + k * kPageTokens), k + 16);
      }
    }
    const F scale = load_f16(keys + groups * kBytes + group * 2 * kPageTokens);
    for (int t = 0; t < kCount; ++t) logits[t] = fma(sums[t], scale, logits[t]);
  }
}

// Two sums for each query, so that one need not wait for the other.
template <Cached kCached, int kCount>
FERRULE_FLATTEN void logits_of(const AttentionTile& tile, const Queries& queries, const std::uint8_t* keys,
                               F (&logits)[kCount]) {
  F other[kCount];
  for (int t = 0; t < kCount; ++t) logits[t] = other[t] = zero();
  if constexpr (kCached == Cached::bf16) {
    const auto pair = [&](F(&sums)[kCount], std::size_t k) {
      const U pairs = load_bytes(keys + k / 2 * 64);
#ifdef FERRULE_BF16_PAIRS
      for (int t = 0; t < kCount; ++t) {
        std::uint32_t two;
        std::memcpy(&two, &queries.narrow[t][k], sizeof two);
        sums[t] = dot2(sums[t], pairs, two);
      }
#else
      const F even = even_bf16(pairs);
      const F odd = odd_bf16(pairs);
      for (int t = 0; t < kCount; ++t) {
        sums[t] = fma(even, set1(queries.numbers[t][k]), sums[t]);
        sums[t] = fma(odd, set1(queries.numbers[t][k + 1]), sums[t]);
      }
#endif
    };
    std::size_t k = 0;
    for (; k + 4 <= tile.width; k += 4) {
      pair(logits, k);
      pair(other, k + 2);
    }
    if (k < tile.width) pair(logits, k);
  } else {
    const auto one = [&](F(&sums)[kCount], std::size_t k) {
      const F key = load_value<kCached>(keys, k * kPageTokens);
      for (int t = 0; t < kCount; ++t) sums[t] = fma(key, set1(queries.numbers[t][k]), sums[t]);
    };
    for (std::size_t k = 0; k < tile.width; k += 2) {
      one(logits, k);
      one(other, k + 1);
    }
  }
  for (int t = 0; t < kCount; ++t) logits[t] = logits[t] + other[t];
}

// Add `tokens` values by weight to numbers `from` of the results on, kParts vectors of each.
template <Cached kCached, int kCount, int kParts>
FERRULE_FLATTEN void add_values(const AttentionTile& tile, const std::uint8_t* values, const float* scales,
                                const float (&weights)[kCount][kPageTokens], std::size_t tokens, std::size_t from) {
  F out[kCount][kParts];
  for (int t = 0; t < kCount; ++t) {
    for (int p = 0; p < kParts; ++p) out[t][p] = load(tile.out[t] + from + 16 * p);
  }
  for (std::size_t j = 0; j < tokens; ++j) {
    F value[kParts];
    for (int p = 0; p < kParts; ++p) {
      const std::size_t index = j * tile.value_width + from + 16 * p;
      value[p] = load_value<kCached>(values, index);
      if constexpr (has_codes(kCached)) value[p] = value[p] * set1(scales[index / kCacheGroup]);
    }
    for (int t = 0; t < kCount; ++t) {
      const F weight = set1(weights[t][j]);
      for (int p = 0; p < kParts; ++p) out[t][p] = fma(weight, value[p], out[t][p]);
    }
  }
  for (int t = 0; t < kCount; ++t) {
    for (int p = 0; p < kParts; ++p) store(tile.out[t] + from + 16 * p, out[t][p]);
  }
}

template <Cached kCached, int kCount>
void attend_as(const AttentionTile& tile) {
  static thread_local Queries queries;
  for (int t = 0; t < kCount; ++t) {
    std::memcpy(queries.numbers[t], tile.queries[t], tile.width * sizeof(float));
    if constexpr (has_codes(kCached)) {
      for (std::size_t k = tile.width; k < groups_of(tile.width) * kCacheGroup; ++k) queries.numbers[t][k] = 0;
    }
    if constexpr (kCached == Cached::bf16 && kPairs) {
      for (std::size_t k = 0; k < tile.width; k += 16) {
        float some[16] = {};
        std::memcpy(some, tile.queries[t] + k, least<std::size_t>(16, tile.width - k) * sizeof(float));
        store_bf16(queries.narrow[t] + k, load(some));
      }
    }
    std::memset(tile.out[t], 0, tile.value_width * sizeof(float));
  }
  float top[kCount], total[kCount];
  std::int64_t last = 0;
  std::int64_t lowest = tile.positions[0];
  for (int t = 0; t < kCount; ++t) {
    top[t] = tile.sinks == nullptr ? kNever : tile.sinks[t];
    total[t] = tile.sinks == nullptr ? 0.0F : 1.0F;
    last = last > tile.positions[t] ? last : tile.positions[t];
    lowest = least(lowest, tile.positions[t]);
  }
  constexpr auto kTokens = static_cast<std::int64_t>(kPageTokens);
  const std::int64_t seen = tile.window == 0 || lowest < tile.window ? 0 : lowest - tile.window + 1;
  const auto first_page = static_cast<std::int64_t>(tile.first_page);
  const auto page_step = static_cast<std::int64_t>(tile.page_step);
  const std::int64_t before = seen / kTokens - first_page;  // pages that none of them sees
  std::int64_t place = before <= 0 ? 0 : (before + page_step - 1) / page_step;
  for (std::int64_t page = first_page + place * page_step; page <= last / kTokens; page += page_step, ++place) {
    F logits[kCount];
    if constexpr (has_codes(kCached)) {
      logits_of_codes<kCached, kCount>(tile, queries, tile.keys[place], logits);
    } else {
      logits_of<kCached, kCount>(tile, queries, tile.keys[place], logits);
    }
    alignas(64) float weights[kCount][kPageTokens];
    for (int t = 0; t < kCount; ++t) {
      F scaled = logits[t] * set1(tile.scale);
      if (tile.softcap > 0) scaled = tanh(scaled / set1(tile.softcap)) * set1(tile.softcap);
      const std::int64_t first = page * kTokens;
      const std::int64_t from = tile.window == 0 ? 0 : tile.positions[t] - tile.window + 1;
      const bool partly = first < from || first + kTokens - 1 > tile.positions[t];
      const auto unseen = [&](std::int64_t token) { return first + token < from || first + token > tile.positions[t]; };
      if (partly) {
        store(weights[t], scaled);
        for (std::int64_t j = 0; j < kTokens; ++j) {
          if (unseen(j)) weights[t][j] = kNever;
        }
        scaled = load(weights[t]);
      }
      const float high = highest(scaled);
      if (high > top[t]) {
        if (total[t] != 0) {
          alignas(64) float by[16];
          store(by, exp(set1(top[t] - high)));
          total[t] *= by[0];
          for (std::size_t i = 0; i < tile.value_width; i += 16) {
            store(tile.out[t] + i, load(tile.out[t] + i) * set1(by[0]));
          }
        }
        top[t] = high;
      }
      if (top[t] <= kNever) {  // nothing that it may see yet
        std::memset(weights[t], 0, sizeof weights[t]);
        continue;
      }
      store(weights[t], exp(scaled - set1(top[t])));
      if (partly) {  // e^-87 is not nothing
        for (std::int64_t j = 0; j < kTokens; ++j) {
          if (unseen(j)) weights[t][j] = 0;
        }
      }
      total[t] += sum(load(weights[t]));
    }
    // Tokens behind the last one have not been written: whatever is there must not come into the sums.
    const auto tokens = static_cast<std::size_t>(least<std::int64_t>(kTokens, last - page * kTokens + 1));
    const std::uint8_t* values = tile.values[place];
    alignas(64) float scales[has_codes(kCached) ? kMostGroups * kPageTokens : 1];
    if constexpr (has_codes(kCached)) {
      constexpr std::size_t kBits = code_bits(kCached);
      const std::uint8_t* const at = values + kPageTokens * tile.value_width * kBits / 8;
      const std::size_t count = groups_of(tile.value_width) * kPageTokens;
      for (std::size_t i = 0; i < count; i += 16) store(scales + i, load_f16(at + 2 * i));
    }
#if defined(FERRULE_NEON)  // by how many sums the registers hold
    constexpr int kParts = kCount < 4 ? 4 / kCount : 1;
#else
    constexpr int kParts = kCount < 4 ? 4 : kCount < 8 ? 2 : 1;
#endif
    std::size_t i = 0;
    for (; i + 16 * kParts <= tile.value_width; i += 16 * kParts) {
      add_values<kCached, kCount, kParts>(tile, values, scales, weights, tokens, i);
    }
    for (; i < tile.value_width; i += 16) add_values<kCached, kCount, 1>(tile, values, scales, weights, tokens, i);
  }
  for (int t = 0; t < kCount; ++t) {
    if (tile.highest != nullptr) tile.highest[t] = top[t];
    if (tile.sums != nullptr) tile.sums[t] = total[t];
    const F by = set1(total[t] == 0 ? 0.0F : 1.0F / total[t]);
    for (std::size_t i = 0; i < tile.value_width; i += 16) store(tile.out[t] + i, load(tile.out[t] + i) * by);
  }
}

template <Cached kCached>
void attend_some(const AttentionTile& tile) {
  switch (tile.count) {
    case 1:
      return attend_as<kCached, 1>(tile);
    case 2:
      return attend_as<kCached, 2>(tile);
    case 4:
      return attend_as<kCached, 4>(tile);
    default:
      return attend_as<kCached, 8>(tile);
  }
}

}  // namespace

namespace FERRULE_ISA {
void attend(const AttentionTile& tile);
void attend(const AttentionTile& tile) {  // of 1, 2, 4 or 8 queries
  switch (tile.cached) {
    case Cached::bf16:
      return attend_some<Cached::bf16>(tile);
    case Cached::f16:
      return attend_some<Cached::f16>(tile);
    case Cached::f32:
      return attend_some<Cached::f32>(tile);
    case Cached::int8:
      return attend_some<Cached::int8>(tile);
    case Cached::int4:
      return attend_some<Cached::int4>(tile);
  }
}
}  // namespace FERRULE_ISA
}  // namespace ferrule
