#include "step/cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "assertions.h"

namespace ferrule {

KvCache::KvCache(std::vector<CacheLayer> layers, Element element) : layers_(std::move(layers)), element_(element) {
  for (const CacheLayer& layer : layers_) {
    layer_starts_.push_back(page_bytes_);
    page_bytes_ += layer.page_bytes(element_);
  }
  pages_per_slab_ = std::max<std::size_t>(1, kSlabBytes / std::max<std::size_t>(page_bytes_, 1));
}

std::size_t KvCache::bytes_per_token() const { return page_bytes_ / kPageTokens; }

void KvCache::reserve(std::int64_t sequence, std::size_t seen, std::size_t tokens) {
  if (seen == 0) release(sequence);
  std::vector<Page>& pages = sequences_[sequence];
  FERRULE_ASSERT(seen <= pages.size() * kPageTokens);
  while (pages.size() * kPageTokens < seen + tokens) pages.push_back(take());
}

void KvCache::release(std::int64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  free_.insert(free_.end(), found->second.rbegin(), found->second.rend());
  sequences_.erase(found);
}

KvCache::Page KvCache::take() {
  if (free_.empty()) {
    const auto first = static_cast<Page>(slabs_.size() * pages_per_slab_);
    slabs_.emplace_back(pages_per_slab_ * page_bytes_);
    for (std::size_t i = pages_per_slab_; i > 0; --i) free_.push_back(first + static_cast<Page>(i - 1));
  }
  const Page page = free_.back();
  free_.pop_back();
  return page;
}

std::uint8_t* KvCache::keys(Page page, std::size_t layer, std::size_t head) {
  const CacheLayer& of = layers_[layer];
  return slabs_[page / pages_per_slab_].data() + page % pages_per_slab_ * page_bytes_ + layer_starts_[layer] +
         head * (of.key_bytes(element_) + of.value_bytes(element_));
}

void KvCache::store(Page page, std::size_t layer, std::size_t token, std::size_t head, const float* key,
                    const float* value) {
  const CacheLayer& of = layers_[layer];
  std::uint8_t* const to = keys(page, layer, head);
  std::uint8_t* const values_to =
      to + of.key_bytes(element_) + token * of.padded_value_width() * element_bytes(element_);
  const RowTable& kernels = row_kernels();
  kernels.narrow(element_, value, of.value_width, values_to);
  if (element_ == Element::f32) {
    auto* const out = reinterpret_cast<float*>(to);
    for (std::size_t k = 0; k < of.width; ++k) out[k * kPageTokens + token] = key[k];
    return;
  }
  std::uint16_t narrow[kMostWidth];
  kernels.narrow(element_, key, of.width, narrow);
  auto* const out = reinterpret_cast<std::uint16_t*>(to);
  if (element_ == Element::f16) {
    for (std::size_t k = 0; k < of.width; ++k) out[k * kPageTokens + token] = narrow[k];
    return;
  }
  for (std::size_t k = 0; k < of.width; k += 2) {
    std::memcpy(out + (k / 2 * kPageTokens + token) * 2, narrow + k, 2 * sizeof(std::uint16_t));
  }
}

}  // namespace ferrule
