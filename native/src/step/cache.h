// Paged cache of keys and values: each sequence has pages of 16 tokens, taken from slabs that all layers share.
//
// A block is a run of full pages that is kept under a number, for sequences that begin with the same tokens: they share
// its pages, which are counted, and write behind them only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "compute/memory.h"
#include "kernels/rows.h"

namespace ferrule {

// Cache of one layer, per token: `heads` keys of `width` and values of `value_width` numbers.
struct CacheLayer {
  std::size_t heads = 0;
  std::size_t width = 0;
  std::size_t value_width = 0;

  // Values are filled up to whole vectors; keys and values that have codes, to whole groups.
  std::size_t padded_value_width(Cached cached) const {
    const std::size_t whole = has_codes(cached) ? kCacheGroup : 16;
    return (value_width + whole - 1) / whole * whole;
  }
  std::size_t key_bytes(Cached cached) const { return kPageTokens * row_bytes(width, cached); }
  std::size_t value_bytes(Cached cached) const { return kPageTokens * row_bytes(padded_value_width(cached), cached); }
  std::size_t page_bytes(Cached cached) const { return heads * (key_bytes(cached) + value_bytes(cached)); }

 private:
  static std::size_t row_bytes(std::size_t numbers, Cached cached) {
    if (!has_codes(cached)) return numbers * element_bytes(element_of(cached));
    return (numbers + kCacheGroup - 1) / kCacheGroup * (kCacheGroup * code_bits(cached) / 8 + 2);
  }
};

constexpr std::size_t kBlockPages = 4;  // 64 tokens

// The pages of every sequence that are here: number `rank`, and each `ranks`-th behind it.
struct Stripe {
  std::size_t ranks = 1;
  std::size_t rank = 0;

  bool has(std::size_t page) const { return page % ranks == rank; }
  // How many of the first `pages` of a sequence.
  std::size_t of(std::size_t pages) const { return (pages + ranks - 1 - rank) / ranks; }
};

class KvCache {
 public:
  KvCache(std::vector<CacheLayer> layers, Cached cached, Stripe stripe = {});

  Cached cached() const { return cached_; }
  const Stripe& stripe() const { return stripe_; }
  const CacheLayer& layer(std::size_t index) const { return layers_[index]; }
  // Of a token that is here, all layers together.
  std::size_t bytes_per_token() const;
  // Make room for `tokens` of a sequence; 0 seen starts it afresh. Throws std::bad_alloc.
  void reserve(std::int64_t sequence, std::size_t seen, std::size_t tokens);
  void release(std::int64_t sequence);
  bool has(std::int64_t sequence) const { return sequences_.contains(sequence); }

  // Keep block `place` of a sequence, all of whose tokens it has seen, as `block`. Where there is such a block, the
  // sequence has its pages from then on, in place of its own. Throws std::out_of_range where the sequence has no such.
  void keep(std::int64_t sequence, std::size_t place, std::int64_t block);
  // Start a sequence afresh with `blocks`. Throws std::out_of_range where one is not kept.
  void adopt(std::int64_t sequence, std::span<const std::int64_t> blocks);
  void drop(std::int64_t block);
  std::size_t block_bytes() const { return block_pages() * page_bytes_; }
  // Bytes of a block, of all layers, as they lie in memory: those of one that is kept, or of a new one. Throw
  // std::out_of_range where blocks differ in how many of their pages are here.
  void read(std::int64_t block, std::uint8_t* to) const;
  void write(std::int64_t block, const std::uint8_t* from);
  // A new block, whose contents are still to be put into it.
  void open(std::int64_t block);

  // Part of some blocks that is one layer's and belongs to `heads` of its key/value heads from `first` on: block after
  // block, as it lies in memory.
  struct Part {
    std::size_t layer = 0, first = 0, heads = 0;
  };
  // Throws std::out_of_range where the cache has no such part.
  std::size_t part_bytes(const Part& part) const;  // of one block
  // Of `count` blocks of a sequence from block `place` on. Throws std::out_of_range where it has no such.
  void copy_part(std::int64_t sequence, std::size_t place, std::size_t count, const Part& part, std::uint8_t* to) const;
  // Into a block that `open` made; also while a step runs, which must not use the block. Throws std::out_of_range where
  // it is no such.
  void put_part(std::int64_t block, const Part& part, const std::uint8_t* from);

  using Page = std::uint32_t;
  // Of a sequence those that are here, in the order of its tokens.
  const std::vector<Page>& pages(std::int64_t sequence) const { return sequences_.at(sequence); }
  // The keys of a key/value head; behind them lie its values.
  std::uint8_t* keys(Page page, std::size_t layer, std::size_t head);
  // Store the key and value of the token that is in place `token` of a page.
  void store(Page page, std::size_t layer, std::size_t token, std::size_t head, const float* key, const float* value);

 private:
  using Block = std::vector<Page>;

  void store_codes(std::uint8_t* page, const CacheLayer& of, std::size_t token, const float* key,
                   const float* value) const;
  std::size_t block_pages() const { return stripe_.of(kBlockPages); }
  void check_blocks_alike() const;
  Page take();
  void give_back(Page page);
  std::size_t part_start(const Part& part) const;  // within a page of all layers
  std::uint8_t* start(Page page);
  const std::uint8_t* start(Page page) const;

  static constexpr std::size_t kSlabBytes = std::size_t{4} << 20;

  const std::vector<CacheLayer> layers_;
  const Cached cached_;
  const Stripe stripe_;
  std::vector<std::size_t> layer_starts_;  // bytes, within a page of all layers
  std::size_t page_bytes_ = 0;
  std::size_t pages_per_slab_ = 1;
  std::vector<PageMemory> slabs_;
  std::vector<Page> free_;
  std::vector<std::uint32_t> users_;  // of each page: sequences and blocks
  std::unordered_map<std::int64_t, Block> blocks_;
  std::unordered_map<std::int64_t, std::array<std::uint8_t*, kBlockPages>> opened_;  // where their pages begin
  std::unordered_map<std::int64_t, std::vector<Page>> sequences_;
};

}  // namespace ferrule
