#include "transports/tcp/rail_inbound.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "assertions.h"
#include "transports/tcp/rail_frame.h"

namespace ferrule {
namespace {

constexpr std::size_t kChunkBytes = 256 << 10;  // neighbours in the stash are joined up to this size

}  // namespace

std::size_t Inbound::take() {
  const std::uint64_t end = std::min<std::uint64_t>(received_, taken_ + offer_.size());
  while (!stash_.empty() && stash_.begin()->first < end) {
    auto chunk = stash_.extract(stash_.begin());
    std::vector<std::byte>& bytes = chunk.mapped();
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), end - chunk.key()));
    std::memcpy(offer_.data() + (chunk.key() - taken_), bytes.data(), n);
    if (n == bytes.size()) continue;
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    chunk.key() += n;
    stash_.insert(std::move(chunk));
  }
  FERRULE_ASSERT(end >= taken_ && end - taken_ <= offer_.size());
  const auto n = static_cast<std::size_t>(end - taken_);
  offer_ = offer_.subspan(n);
  taken_ = end;
  return n;
}

Inbound::Bytes Inbound::place(std::uint64_t position, std::size_t size) const {
  const std::uint64_t end = taken_ + offer_.size();
  // What was received before may already be the user's.
  if (position < received_ || position >= end) return {};
  return offer_.subspan(static_cast<std::size_t>(position - taken_),
                        static_cast<std::size_t>(std::min<std::uint64_t>(size, end - position)));
}

void Inbound::store(std::uint64_t position, ConstBytes bytes) {
  while (!bytes.empty()) {
    std::uint64_t known = received_;  // the bytes before this are there
    const auto next = ahead_.upper_bound(position);
    if (next != ahead_.begin()) known = std::max(known, std::prev(next)->second);
    std::uint64_t n = bytes.size();
    if (position < known) {
      n = std::min(n, known - position);
    } else {
      if (next != ahead_.end()) n = std::min(n, next->first - position);
      put(position, bytes.first(static_cast<std::size_t>(n)));
    }
    position += n;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void Inbound::put(std::uint64_t position, ConstBytes bytes) {
  const Bytes direct = place(position, bytes.size());
  if (!direct.empty()) std::memcpy(direct.data(), bytes.data(), direct.size());
  if (direct.size() < bytes.size()) stash(position + direct.size(), bytes.subspan(direct.size()));
  mark(position, bytes.size());
}

void Inbound::stash(std::uint64_t position, ConstBytes bytes) {
  const auto next = stash_.lower_bound(position);
  if (next != stash_.begin()) {
    auto& [begin, before] = *std::prev(next);
    if (begin + before.size() == position && before.size() + bytes.size() <= kChunkBytes) {
      before.insert(before.end(), bytes.begin(), bytes.end());
      return;
    }
  }
  stash_.emplace_hint(next, position, std::vector<std::byte>(bytes.begin(), bytes.end()));
}

void Inbound::mark(std::uint64_t position, std::size_t size) {
  std::uint64_t begin = position;
  std::uint64_t end = position + size;
  if (begin > received_) {
    auto next = ahead_.upper_bound(begin);
    if (next != ahead_.begin() && std::prev(next)->second >= begin) --next;
    while (next != ahead_.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = ahead_.erase(next);
    }
    ahead_.emplace_hint(next, begin, end);
    return;
  }
  received_ = std::max(received_, end);
  while (!ahead_.empty() && ahead_.begin()->first <= received_) {
    received_ = std::max(received_, ahead_.begin()->second);
    ahead_.erase(ahead_.begin());
  }
  FERRULE_ASSERT(received_ >= taken_ && received_ - taken_ <= kRailWindowBytes);
  FERRULE_ASSERT_COSTLY(std::ranges::none_of(ahead_, [](const auto& part) { return part.first >= part.second; }));
}

}  // namespace ferrule
