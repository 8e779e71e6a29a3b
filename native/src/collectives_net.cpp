// Collectives over channels: every rank talks to every other one directly, all at the same time.
//
// Here is the place for other algorithms (rings, routed forms for partial meshes); which one runs must depend only
// on what all ranks know alike, and every one must combine the ranks in the order 0, 1, 2...
#include <algorithm>

#include "group.h"

namespace ferrule {
namespace {

// Up to this size every rank sends all it has to every other and each reduces for itself: one message of latency.
// Above, each rank reduces one piece and sends the result: less work and, with more than two ranks, fewer bytes.
constexpr std::size_t kAtOncePair = 128 << 10;
constexpr std::size_t kAtOnce = 16 << 10;
// Contributions are reduced by chunks that are still in the cache from receiving them.
constexpr std::size_t kChunk = 256 << 10;
constexpr std::size_t kWindow = 4 * kChunk;

std::vector<std::size_t> cut(std::size_t bytes, std::size_t element, int size) {
  const auto n = static_cast<std::size_t>(size);
  const std::size_t elements = bytes / element;
  std::vector<std::size_t> bounds(n + 1);
  // Not i * elements / n: that overflows for huge arrays.
  for (std::size_t i = 0; i <= n; ++i) bounds[i] = (elements / n * i + std::min(i, elements % n)) * element;
  return bounds;
}

}  // namespace

Bytes Group::scratch(std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_.reset();
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return {scratch_.get(), bytes};
}

void Group::exchange_all_reduce(const Call& call, std::byte* data, ReduceFunction reduce) {
  if (call.bytes <= (size_ == 2 ? kAtOncePair : kAtOnce)) return exchange_at_once(call, data, reduce);
  const std::size_t element = ferrule_dtype_size(static_cast<ferrule_dtype>(call.dtype));
  const std::vector<std::size_t> bounds = cut(static_cast<std::size_t>(call.bytes), element, size_);
  exchange_pieces(call, data, data + bounds[static_cast<std::size_t>(rank_)], data, bounds, reduce);
}

void Group::exchange_at_once(const Call& call, std::byte* data, ReduceFunction reduce) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  const Bytes space = scratch(bytes * static_cast<std::size_t>(size_));
  std::vector<const void*> sources(static_cast<std::size_t>(size_), data);
  exchange_->clear();
  for (Channel* channel : channels_) {
    if (channel == nullptr) continue;
    const auto peer = static_cast<std::size_t>(channel->peer());
    exchange_->to(channel, header(call)).first = {data, bytes};
    Incoming& in = exchange_->from(channel, header(call));
    in.first_size = bytes;
    in.window = space.subspan(peer * bytes, bytes);
    sources[peer] = in.window.data();
  }
  exchange_->run();
  const std::size_t element = ferrule_dtype_size(static_cast<ferrule_dtype>(call.dtype));
  if (bytes != 0) reduce(data, sources.data(), size_, bytes / element);
}

void Group::exchange_pieces(const Call& call, const std::byte* data, std::byte* out, std::byte* gathered,
                            const std::vector<std::size_t>& bounds, ReduceFunction reduce) {
  const auto me = static_cast<std::size_t>(rank_);
  const std::byte* const mine = data + bounds[me];
  const std::size_t mine_bytes = bounds[me + 1] - bounds[me];
  const Bytes space = scratch(kWindow * static_cast<std::size_t>(size_));
  std::vector<Outgoing*> outgoing;
  std::vector<Incoming*> incoming;
  exchange_->clear();
  for (Channel* channel : channels_) {
    if (channel == nullptr) continue;
    const auto peer = static_cast<std::size_t>(channel->peer());
    const std::size_t peer_bytes = bounds[peer + 1] - bounds[peer];
    Outgoing& to = exchange_->to(channel, header(call));
    to.first = {data + bounds[peer], peer_bytes};
    Incoming& from = exchange_->from(channel, header(call));
    from.first_size = mine_bytes;
    from.window = space.subspan(peer * kWindow, kWindow);
    if (gathered != nullptr) {
      to.second = {out, mine_bytes};
      // Safe although we still send from this place: the peer sends a result only after it has all of our bytes.
      from.second = {gathered + bounds[peer], peer_bytes};
    }
    outgoing.push_back(&to);
    incoming.push_back(&from);
  }
  const std::size_t element = ferrule_dtype_size(static_cast<ferrule_dtype>(call.dtype));
  std::vector<const void*> sources(static_cast<std::size_t>(size_));
  std::size_t reduced = 0;
  exchange_->run([&] {
    bool any = false;
    while (reduced < mine_bytes) {
      const std::size_t n = std::min(kChunk, mine_bytes - reduced);
      const auto arrived = [&](const Incoming* from) { return from->first_got() >= reduced + n; };
      if (!std::ranges::all_of(incoming, arrived)) break;
      sources[me] = mine + reduced;
      for (const Incoming* from : incoming) {
        sources[static_cast<std::size_t>(from->channel->peer())] = from->window.data() + reduced % kWindow;
      }
      reduce(out + reduced, sources.data(), size_, n / element);
      reduced += n;
      for (Incoming* from : incoming) from->consumed = reduced;
      if (gathered != nullptr) {
        for (Outgoing* to : outgoing) to->second_ready = reduced;
      }
      any = true;
    }
    return any;
  });
}

void Group::exchange_all_gather(const Call& call, const std::byte* in, std::byte* out) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  exchange_->clear();
  for (Channel* channel : channels_) {
    if (channel == nullptr) continue;
    exchange_->to(channel, header(call)).first = {in, bytes};
    exchange_->from(channel, header(call)).second = {out + static_cast<std::size_t>(channel->peer()) * bytes, bytes};
  }
  exchange_->run();
}

void Group::exchange_empty(const Call& call) {
  exchange_->clear();
  for (Channel* channel : channels_) {
    if (channel == nullptr) continue;
    exchange_->to(channel, header(call));
    exchange_->from(channel, header(call));
  }
  exchange_->run();
}

}  // namespace ferrule
