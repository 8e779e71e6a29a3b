#include "step/cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "assertions.h"

namespace ferrule {
namespace {

// Group after group: codes to `codes`, byte i of a group `stride` bytes behind the one before, and scales to `scales`,
// `scale_stride` bytes apart.
void store_row(const float* from, std::size_t width, int bits, std::uint8_t* codes, std::size_t stride,
               std::uint8_t* scales, std::size_t scale_stride) {
  for (std::size_t first = 0; first < width; first += kCacheGroup) {
    float numbers[kCacheGroup] = {};
    std::memcpy(numbers, from + first, std::min(kCacheGroup, width - first) * sizeof(float));
    std::int8_t made[kCacheGroup];
    const std::uint16_t scale = row_kernels().encode(numbers, bits, made);
    std::memcpy(scales, &scale, sizeof scale);
    scales += scale_stride;
    for (std::size_t i = 0; i < kCacheGroup * static_cast<std::size_t>(bits) / 8; ++i, codes += stride) {
      *codes = static_cast<std::uint8_t>(bits == 8 ? made[i] : (made[i] + 8) | (made[i + 16] + 8) << 4);
    }
  }
}

}  // namespace

KvCache::KvCache(std::vector<CacheLayer> layers, Cached cached, Stripe stripe)
    : layers_(std::move(layers)), cached_(cached), stripe_(stripe) {
  for (const CacheLayer& layer : layers_) {
    layer_starts_.push_back(page_bytes_);
    page_bytes_ += layer.page_bytes(cached_);
  }
  pages_per_slab_ = std::max<std::size_t>(1, kSlabBytes / std::max<std::size_t>(page_bytes_, 1));
}

std::size_t KvCache::bytes_per_token() const { return page_bytes_ / kPageTokens; }

void KvCache::reserve(std::int64_t sequence, std::size_t seen, std::size_t tokens) {
  if (seen == 0) release(sequence);
  std::vector<Page>& pages = sequences_[sequence];
  const auto here = [&](std::size_t count) { return stripe_.of((count + kPageTokens - 1) / kPageTokens); };
  FERRULE_ASSERT(here(seen) <= pages.size());
  while (pages.size() < here(seen + tokens)) pages.push_back(take());
}

void KvCache::release(std::int64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  for (auto page = found->second.rbegin(); page != found->second.rend(); ++page) give_back(*page);
  sequences_.erase(found);
}

void KvCache::keep(std::int64_t sequence, std::size_t place, std::int64_t block) {
  std::vector<Page>& pages = sequences_.at(sequence);
  const std::size_t begin = stripe_.of(place * kBlockPages), end = stripe_.of((place + 1) * kBlockPages);
  if (end > pages.size()) throw std::out_of_range("the sequence has no such block");
  const auto first = pages.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) {
    const auto last = pages.begin() + static_cast<std::ptrdiff_t>(end);
    for (const Page page : blocks_.emplace(block, Block(first, last)).first->second) ++users_[page];
    return;
  }
  for (std::size_t i = 0; i < end - begin; ++i) {
    const Page own = std::exchange(first[static_cast<std::ptrdiff_t>(i)], found->second[i]);
    ++users_[found->second[i]];
    give_back(own);
  }
}

void KvCache::adopt(std::int64_t sequence, std::span<const std::int64_t> blocks) {
  release(sequence);
  std::vector<Page> pages;
  for (const std::int64_t block : blocks) {
    const Block& kept = blocks_.at(block);
    pages.insert(pages.end(), kept.begin(), kept.end());
  }
  for (const Page page : pages) ++users_[page];
  sequences_[sequence] = std::move(pages);
}

void KvCache::drop(std::int64_t block) {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  for (const Page page : found->second) give_back(page);
  blocks_.erase(found);
  opened_.erase(block);
}

void KvCache::check_blocks_alike() const {
  if (kBlockPages % stripe_.ranks != 0) throw std::out_of_range("not every block has as many pages here");
}

void KvCache::read(std::int64_t block, std::uint8_t* to) const {
  check_blocks_alike();
  for (const Page page : blocks_.at(block)) {
    std::memcpy(to, start(page), page_bytes_);
    to += page_bytes_;
  }
}

void KvCache::write(std::int64_t block, const std::uint8_t* from) {
  check_blocks_alike();
  drop(block);
  Block& made = blocks_[block];
  for (std::size_t i = 0; i < block_pages(); ++i) {
    made.push_back(take());
    std::memcpy(start(made.back()), from + i * page_bytes_, page_bytes_);
  }
}

void KvCache::open(std::int64_t block) {
  drop(block);
  Block& made = blocks_[block];
  auto& starts = opened_[block];
  for (std::size_t i = 0; i < kBlockPages; ++i) {
    made.push_back(take());
    starts[i] = start(made.back());
  }
}

std::size_t KvCache::part_start(const Part& part) const {
  if (part.layer >= layers_.size() || part.heads == 0 || part.first + part.heads > layers_[part.layer].heads) {
    throw std::out_of_range("the cache has no such heads");
  }
  return layer_starts_[part.layer] + part.first * layers_[part.layer].page_bytes(cached_) / layers_[part.layer].heads;
}

std::size_t KvCache::part_bytes(const Part& part) const {
  static_cast<void>(part_start(part));
  return kBlockPages * part.heads * layers_[part.layer].page_bytes(cached_) / layers_[part.layer].heads;
}

void KvCache::copy_part(std::int64_t sequence, std::size_t place, std::size_t count, const Part& part,
                        std::uint8_t* to) const {
  const std::vector<Page>& pages = sequences_.at(sequence);
  const std::size_t begin = part_start(part);
  const std::size_t bytes = part_bytes(part) / kBlockPages;
  if ((place + count) * kBlockPages > pages.size()) throw std::out_of_range("the sequence has no such blocks");
  for (std::size_t i = place * kBlockPages; i < (place + count) * kBlockPages; ++i, to += bytes) {
    std::memcpy(to, start(pages[i]) + begin, bytes);
  }
}

void KvCache::put_part(std::int64_t block, const Part& part, const std::uint8_t* from) {
  const std::size_t begin = part_start(part);
  const std::size_t bytes = part_bytes(part) / kBlockPages;
  for (std::uint8_t* const page : opened_.at(block)) {
    std::memcpy(page + begin, from, bytes);
    from += bytes;
  }
}

KvCache::Page KvCache::take() {
  if (free_.empty()) {
    const auto first = static_cast<Page>(slabs_.size() * pages_per_slab_);
    slabs_.emplace_back(pages_per_slab_ * page_bytes_);
    users_.resize(users_.size() + pages_per_slab_);
    for (std::size_t i = pages_per_slab_; i > 0; --i) free_.push_back(first + static_cast<Page>(i - 1));
  }
  const Page page = free_.back();
  free_.pop_back();
  users_[page] = 1;
  return page;
}

void KvCache::give_back(Page page) {
  FERRULE_ASSERT(users_[page] > 0);
  if (--users_[page] == 0) free_.push_back(page);
}

std::uint8_t* KvCache::start(Page page) {
  return slabs_[page / pages_per_slab_].data() + page % pages_per_slab_ * page_bytes_;
}

const std::uint8_t* KvCache::start(Page page) const {
  return slabs_[page / pages_per_slab_].data() + page % pages_per_slab_ * page_bytes_;
}

std::uint8_t* KvCache::keys(Page page, std::size_t layer, std::size_t head) {
  const CacheLayer& of = layers_[layer];
  return start(page) + layer_starts_[layer] + head * (of.key_bytes(cached_) + of.value_bytes(cached_));
}

void KvCache::store(Page page, std::size_t layer, std::size_t token, std::size_t head, const float* key,
                    const float* value) {
  const CacheLayer& of = layers_[layer];
  std::uint8_t* const to = keys(page, layer, head);
  if (has_codes(cached_)) return store_codes(to, of, token, key, value);
  const Element element = element_of(cached_);
  std::uint8_t* const values_to =
      to + of.key_bytes(cached_) + token * of.padded_value_width(cached_) * element_bytes(element);
  const RowTable& kernels = row_kernels();
  kernels.narrow(element, value, of.value_width, values_to);
  if (element == Element::f32) {
    auto* const out = reinterpret_cast<float*>(to);
    for (std::size_t k = 0; k < of.width; ++k) out[k * kPageTokens + token] = key[k];
    return;
  }
  std::uint16_t narrow[kMostWidth];
  kernels.narrow(element, key, of.width, narrow);
  auto* const out = reinterpret_cast<std::uint16_t*>(to);
  if (element == Element::f16) {
    for (std::size_t k = 0; k < of.width; ++k) out[k * kPageTokens + token] = narrow[k];
    return;
  }
  for (std::size_t k = 0; k < of.width; k += 2) {
    std::memcpy(out + (k / 2 * kPageTokens + token) * 2, narrow + k, 2 * sizeof(std::uint16_t));
  }
}

void KvCache::store_codes(std::uint8_t* page, const CacheLayer& of, std::size_t token, const float* key,
                          const float* value) const {
  const int bits = code_bits(cached_);
  const std::size_t key_groups = (of.width + kCacheGroup - 1) / kCacheGroup;
  const std::size_t value_groups = of.padded_value_width(cached_) / kCacheGroup;
  const std::size_t group_bytes = kCacheGroup * static_cast<std::size_t>(bits) / 8;
  std::uint8_t* const key_scales = page + key_groups * group_bytes * kPageTokens;
  store_row(key, of.width, bits, page + token, kPageTokens, key_scales + 2 * token, 2 * kPageTokens);
  std::uint8_t* const values = page + of.key_bytes(cached_);
  std::uint8_t* const value_scales = values + value_groups * group_bytes * kPageTokens;
  store_row(value, of.value_width, bits, values + token * value_groups * group_bytes, 1,
            value_scales + 2 * token * value_groups, 2);
}

}  // namespace ferrule
