// Attention over pages of 16 tokens. A block of pages is read once for all queries of a tile, which take turns in
// groups that fill the registers, while it lies in the cache of the processor; the softmax runs along by blocks
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). What
// a query gets does not depend on which others are in its tile. CMake compiles this file several times, with
// FERRULE_ISA naming the instruction set.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/attention_products.h"
#include "kernels/rows.h"
#include "kernels/simd/simd.h"

namespace ferrule {
namespace {

constexpr float kNever = -1e30F;

// Tokens that a query sees: of those of the tile's pages `begin` up to `end` (not included).
struct Seen {
  std::int64_t begin, end;
};

// How many tokens of the tile's pages are before `position`.
std::int64_t tokens_before(const AttentionTile& tile, std::int64_t position) {
  const auto first = static_cast<std::int64_t>(tile.first_page), step = static_cast<std::int64_t>(tile.page_step);
  const std::int64_t pages = position / kTokens - first;
  if (pages < 0) return 0;
  return (pages + step - 1) / step * kTokens + (pages % step == 0 ? position % kTokens : 0);
}

// Some queries of a tile: number k of each lies beside that of the others; as pairs of bfloat16 where these are
// multiplied.
struct Group {
  std::size_t first;  // query
  Seen seen;          // by one of them at least
  const float* queries;
};

// Highest logit so far of each query of a tile, and the sums of its weights, which are added up at the end.
struct Softmax {
  Seen seen[kMostQueries];
  float top[kMostQueries];
  alignas(64) float total[kMostQueries][16];

  void begin(std::size_t t, Seen tokens, const float* sink) {
    seen[t] = tokens;
    top[t] = sink == nullptr ? kNever : *sink;
    std::memset(total[t], 0, sizeof total[t]);
    if (sink != nullptr) total[t][0] = 1;
  }

  // The logits of a group of `count` queries, for some pages from token `first` on, become weights.
  void weigh(const AttentionTile& tile, std::size_t query, std::size_t count, Weights& weights, std::int64_t first,
             std::int64_t pages) {
    const F scale = set1(tile.scale), cap = set1(tile.softcap);
    const bool capped = tile.softcap > 0;
    const std::int64_t end = first + pages * kTokens;
    const auto replace_unseen = [&](std::size_t t, float by) {
      const Seen& tokens = seen[query + t];
      for (std::int64_t token = first; token < least(tokens.begin, end); ++token) weights.of[t][token - first] = by;
      for (std::int64_t token = most(tokens.end, first); token < end; ++token) weights.of[t][token - first] = by;
    };
    for (std::size_t t = 0; t < count; ++t) {
      float* const of = weights.of[t];
      for (std::int64_t i = 0; i < pages * kTokens; i += kTokens) {
        F scaled = load(of + i) * scale;
        if (capped) scaled = tanh(scaled / cap) * cap;
        store(of + i, scaled);
      }
      replace_unseen(t, kNever);
      F high = load(of);
      for (std::int64_t i = kTokens; i < pages * kTokens; i += kTokens) high = max(high, load(of + i));
      const float before = top[query + t];
      top[query + t] = most(before, highest(high));
      weights.by[t] = top[query + t] - before;
    }
    for (std::size_t t = 0; t < count; ++t) {
      float* const of = weights.of[t];
      const float highest_so_far = top[query + t];
      if (highest_so_far <= kNever) {  // nothing that it may see yet
        std::memset(of, 0, sizeof weights.of[t]);
        weights.by[t] = 1;
        continue;
      }
      F sums = load(total[query + t]);
      if (weights.by[t] == 0) {
        weights.by[t] = 1;
      } else {
        alignas(64) float by[16];
        store(by, exp(set1(-weights.by[t])));
        weights.by[t] = by[0];
        sums = sums * load(by);
      }
      for (std::int64_t i = 0; i < pages * kTokens; i += kTokens) {
        store(of + i, exp(load(of + i) - set1(highest_so_far)));
      }
      replace_unseen(t, 0);  // e^-87 is not nothing
      for (std::int64_t i = 0; i < pages * kTokens; i += kTokens) sums = sums + load(of + i);
      store(total[query + t], sums);
    }
  }
};

// What a tile needs beside its results.
struct Scratch {
  alignas(64) float queries[kMostQueries * kMostWidth];
  alignas(64) Scales scales[kBlock];
  Softmax softmax;
  Weights weights;
};

// A block of pages, which begins with page `block`, for one group of queries.
template <Cached kCached, int kCount>
void attend_group(const AttentionTile& tile, const Group& group, std::int64_t block, Scratch& scratch) {
  const std::int64_t from = most<std::int64_t>(0, group.seen.begin / kTokens - block);
  const std::int64_t pages = least(kBlock, (group.seen.end + kTokens - 1) / kTokens - block) - from;
  if (pages <= 0) return;
  const std::int64_t first = (block + from) * kTokens;
  Weights& weights = scratch.weights;
  constexpr int kSide = side_by_side(kCount);
  std::int64_t page = 0;
  const std::uint8_t* const* const keys = tile.keys + block + from;
  for (; page + kSide <= pages; page += kSide) {
    logits_of<kCached, kCount, kSide>(tile.width, group.queries, keys, weights, page);
  }
  for (; page < pages; ++page) logits_of<kCached, kCount, 1>(tile.width, group.queries, keys, weights, page);
  scratch.softmax.weigh(tile, group.first, kCount, weights, first, pages);
  const auto tokens = static_cast<std::size_t>(least(pages * kTokens, group.seen.end - first));
  const std::uint8_t* const* const values = tile.values + block + from;
  const Scales* const scales = scratch.scales + from;
  const std::size_t width = tile.value_width;
  float* const* const out = tile.out + group.first;
  std::size_t i = 0;
  for (; i + 16 * kSide <= width; i += 16 * kSide) {
    add_values<kCached, kCount, kSide>(width, out, values, scales, weights, tokens, i);
  }
  for (; i < width; i += 16) add_values<kCached, kCount, 1>(width, out, values, scales, weights, tokens, i);
}

using AttendGroup = void (*)(const AttentionTile& tile, const Group& group, std::int64_t block, Scratch& scratch);

template <Cached kCached, int... kCounts>
AttendGroup attend_of(std::size_t count, std::integer_sequence<int, kCounts...>) {
  constexpr AttendGroup kAll[] = {attend_group<kCached, kCounts + 1>...};
  return kAll[count - 1];
}

// Queries of a group side by side; filled up with zeros to whole groups of codes.
template <Cached kCached>
void interleave(const AttentionTile& tile, std::size_t first, std::size_t count, float* to) {
  const std::size_t padded = has_codes(kCached) ? groups_of(tile.width) * kCacheGroup : tile.width;
  for (std::size_t t = 0; t < count; ++t) {
    const float* const query = tile.queries[first + t];
    if constexpr (kCached == Cached::bf16 && kPairs) {
      for (std::size_t k = 0; k < tile.width; k += 16) {
        alignas(64) float some[16] = {};
        alignas(64) std::uint16_t narrow[16];
        const std::size_t left = least<std::size_t>(16, tile.width - k);
        std::memcpy(some, query + k, left * sizeof(float));
        store_bf16(narrow, load(some));
        for (std::size_t i = 0; i < left; i += 2) std::memcpy(to + (k + i) * count + t, narrow + i, sizeof(float));
      }
    } else {
      for (std::size_t k = 0; k < padded; ++k) to[k * count + t] = k < tile.width ? query[k] : 0;
    }
  }
}

template <Cached kCached>
void attend_as(const AttentionTile& tile) {
  static thread_local Scratch scratch;
  Group groups[kMostQueries];
  AttendGroup attend[kMostQueries];
  const std::size_t count = (tile.count + kRows - 1) / kRows;
  Seen seen{INT64_MAX, 0};  // by any
  const auto join = [](Seen& all, const Seen& one) { all = {least(all.begin, one.begin), most(all.end, one.end)}; };
  float* at = scratch.queries;
  for (std::size_t g = 0; g < count; ++g) {
    Group& group = groups[g];
    const std::size_t end = tile.count * (g + 1) / count;
    group.first = tile.count * g / count;
    group.seen = {INT64_MAX, 0};
    for (std::size_t t = group.first; t < end; ++t) {
      const std::int64_t position = tile.positions[t];
      const std::int64_t from = tile.window == 0 ? 0 : most<std::int64_t>(0, position - tile.window + 1);
      const Seen tokens{tokens_before(tile, from), tokens_before(tile, position + 1)};
      join(group.seen, tokens);
      scratch.softmax.begin(t, tokens, tile.sinks == nullptr ? nullptr : tile.sinks + t);
      std::memset(tile.out[t], 0, tile.value_width * sizeof(float));
    }
    join(seen, group.seen);
    const std::size_t some = end - group.first;
    attend[g] = attend_of<kCached>(some, std::make_integer_sequence<int, kRows>());
    interleave<kCached>(tile, group.first, some, at);
    group.queries = at;
    at += some * kMostWidth;
  }
  // Blocks begin at the same tokens whatever is seen of them.
  for (std::int64_t block = seen.begin / kTokens / kBlock * kBlock; block * kTokens < seen.end; block += kBlock) {
    if constexpr (has_codes(kCached)) {
      constexpr std::size_t kBits = code_bits(kCached);
      const std::size_t numbers = groups_of(tile.value_width) * kPageTokens;
      const std::int64_t behind = least(block + kBlock, (seen.end + kTokens - 1) / kTokens);
      for (std::int64_t page = most(block, seen.begin / kTokens); page < behind; ++page) {
        const std::uint8_t* const from = tile.values[page] + kPageTokens * tile.value_width * kBits / 8;
        for (std::size_t i = 0; i < numbers; i += 16) store(scratch.scales[page - block] + i, load_f16(from + 2 * i));
      }
    }
    for (std::size_t g = 0; g < count; ++g) attend[g](tile, groups[g], block, scratch);
  }
  for (std::size_t t = 0; t < tile.count; ++t) {
    const float total = sum(load(scratch.softmax.total[t]));
    if (tile.highest != nullptr) tile.highest[t] = scratch.softmax.top[t];
    if (tile.sums != nullptr) tile.sums[t] = total;
    const F by = set1(total == 0 ? 0.0F : 1.0F / total);
    for (std::size_t i = 0; i < tile.value_width; i += 16) store(tile.out[t] + i, load(tile.out[t] + i) * by);
  }
}

}  // namespace

namespace FERRULE_ISA {
void attend(const AttentionTile& tile);
void attend(const AttentionTile& tile) {
  switch (tile.cached) {
    case Cached::bf16:
      return attend_as<Cached::bf16>(tile);
    case Cached::f16:
      return attend_as<Cached::f16>(tile);
    case Cached::f32:
      return attend_as<Cached::f32>(tile);
    case Cached::int8:
      return attend_as<Cached::int8>(tile);
    case Cached::int4:
      return attend_as<Cached::int4>(tile);
  }
}
}  // namespace FERRULE_ISA
}  // namespace ferrule
