// The direct ways: every rank talks to every other one, all at the same time, and combines the ranks in the order
// 0, 1, 2...
#include "collectives/net.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ferrule {
namespace {

// Up to this size every rank sends all it has to every other and each reduces for itself: one message of latency.
// Above, each rank reduces one piece and sends the result: less work and, with more than two ranks, fewer bytes.
constexpr std::size_t kAtOncePair = 128 << 10;
constexpr std::size_t kAtOnce = 16 << 10;
// Contributions are reduced by chunks that are still in the cache from receiving them.
constexpr std::size_t kChunk = 256 << 10;
constexpr std::size_t kWindow = 4 * kChunk;
constexpr std::size_t kLine = 64;

std::vector<std::size_t> cut(std::size_t bytes, std::size_t element, int size) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::size_t> bounds(n + 1);
  for (std::size_t i = 0; i <= n; ++i) bounds[i] = part_begin(bytes, element, i, n);
  return bounds;
}

}  // namespace

Algorithm Strategy::choose(const Call& call, int size) const {
  const Algorithm direct = call.bytes <= (size == 2 ? kAtOncePair : kAtOnce) ? Algorithm::once : Algorithm::pieces;
  // The sum of an average must not wrap around on its way.
  const bool whole = call.dtype >= static_cast<std::uint8_t>(Dtype::i8) && call.averages();
  if (whole) return direct;
  for (const Decision& decision : decisions) {
    if (decision.op != call.op || call.bytes > decision.up_to_bytes) continue;
    if (decision.algorithm == Algorithm::tree && tree.empty()) return direct;
    if (decision.algorithm == Algorithm::ring && ring.size() < 3) return direct;
    return decision.algorithm;
  }
  return direct;
}

NetCollectives::NetCollectives(int rank, std::uint64_t epoch, const std::vector<Channel*>& channels, Exchange& exchange,
                               Waiter& waiter, Strategy strategy)
    : rank_(rank),
      size_(static_cast<int>(channels.size())),
      epoch_(epoch),
      channels_(channels),
      peers_(channels),
      exchange_(exchange),
      waiter_(waiter),
      strategy_(std::move(strategy)),
      program_(channels_) {
  std::erase(peers_, nullptr);
  if (!strategy_.tree.empty()) tree_ = Tree(strategy_.tree, rank_);
  ring_.order = strategy_.ring;
  const auto here = std::ranges::find(ring_.order, rank_);
  if (here == ring_.order.end() && !ring_.order.empty()) throw std::invalid_argument("the ring misses this rank");
  ring_.position = static_cast<int>(here - ring_.order.begin());
}

Bytes NetCollectives::scratch(std::size_t bytes) {
  if (bytes == 0) return {};
  if (scratch_bytes_ < bytes) {
    scratch_.reset();
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes + kLine);
    scratch_bytes_ = bytes;
  }
  const auto past = reinterpret_cast<std::uintptr_t>(scratch_.get()) % kLine;
  return {scratch_.get() + (kLine - past), bytes};
}

void NetCollectives::all_reduce(const Call& call, std::byte* data, ReduceFunction reduce) {
  const Algorithm algorithm = strategy_.choose(call, size_);
  if (algorithm == Algorithm::once) return once(call, data, reduce);
  if (algorithm != Algorithm::pieces) return hop_all_reduce(algorithm, call, data, reduce);
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const std::vector<std::size_t> bounds = cut(static_cast<std::size_t>(call.bytes), element, size_);
  pieces(call, data, data + bounds[static_cast<std::size_t>(rank_)], data, bounds, reduce);
}

void NetCollectives::reduce_scatter(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce) {
  const Algorithm algorithm = strategy_.choose(call, size_);
  if (algorithm > Algorithm::doubling) return hop_reduce_scatter(algorithm, call, in, out, reduce);
  const auto n = static_cast<std::size_t>(size_);
  std::vector<std::size_t> bounds(n + 1);
  for (std::size_t i = 0; i <= n; ++i) bounds[i] = static_cast<std::size_t>(call.bytes) / n * i;
  pieces(call, in, out, nullptr, bounds, reduce);
}

void NetCollectives::once(const Call& call, std::byte* data, ReduceFunction reduce) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  // Each message lies whole in its slot, and its payload begins on a cache line.
  const std::size_t slot = (kLine + bytes + kLine - 1) / kLine * kLine;
  const Bytes space = scratch(slot * static_cast<std::size_t>(size_));
  sources_.resize(channels_.size());
  if (size_ == 2) {
    Channel& peer = *channels_[static_cast<std::size_t>(1 - rank_)];
    const Bytes whole = space.subspan(slot + kLine - sizeof(MessageHeader), sizeof(MessageHeader) + bytes);
    sources_[static_cast<std::size_t>(rank_)] = data;
    sources_[static_cast<std::size_t>(1 - rank_)] = whole.data() + sizeof(MessageHeader);
    swap(peer, header(call), {data, bytes}, whole);
  } else {
    exchange_.clear();
    for (Channel* const channel : peers_) {
      const auto peer = static_cast<std::size_t>(channel->peer());
      exchange_.to(channel, header(call)).first = {data, bytes};
      Incoming& in = exchange_.from(channel, header(call));
      in.first_size = bytes;
      in.whole = space.subspan(peer * slot + kLine - sizeof(MessageHeader), sizeof(MessageHeader) + bytes);
      sources_[peer] = in.whole.data() + sizeof(MessageHeader);
    }
    sources_[static_cast<std::size_t>(rank_)] = data;
    exchange_.run();
  }
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  if (bytes != 0) reduce(data, sources_.data(), size_, bytes / element, size_);
}

// Two ranks in step find each other's bytes there as soon as their own are sent: then nothing has to be set up for
// waiting. `whole`: room for header and payload.
void NetCollectives::swap(Channel& peer, const MessageHeader& call, ConstBytes payload, Bytes whole) {
  const ConstBytes parts[2] = {ConstBytes(reinterpret_cast<const std::byte*>(&call), sizeof call), payload};
  const std::size_t sent = peer.try_send(parts);
  const std::size_t got = sent == whole.size() ? peer.try_recv(whole) : 0;
  if (got == whole.size() && std::memcmp(whole.data(), &call, sizeof call) == 0 && !peer.holds_callers_memory()) return;
  exchange_.clear();
  Outgoing& out = exchange_.to(&peer, call);
  out.first = payload;
  out.begin_at(sent);
  Incoming& in = exchange_.from(&peer, call);
  in.first_size = payload.size();
  in.whole = whole;
  in.begin_at(got);
  exchange_.run();
}

void NetCollectives::pieces(const Call& call, const std::byte* data, std::byte* out, std::byte* gathered,
                            const std::vector<std::size_t>& bounds, ReduceFunction reduce) {
  const auto me = static_cast<std::size_t>(rank_);
  const std::byte* const mine = data + bounds[me];
  const std::size_t mine_bytes = bounds[me + 1] - bounds[me];
  const Bytes space = scratch(kWindow * static_cast<std::size_t>(size_));
  std::vector<Outgoing*> outgoing;
  std::vector<Incoming*> incoming;
  exchange_.clear();
  for (Channel* const channel : peers_) {
    const auto peer = static_cast<std::size_t>(channel->peer());
    const std::size_t peer_bytes = bounds[peer + 1] - bounds[peer];
    // Every rank knows which pieces are empty, and what is not gathered needs no message for those.
    if (gathered != nullptr || peer_bytes != 0) {
      Outgoing& to = exchange_.to(channel, header(call));
      to.first = {data + bounds[peer], peer_bytes};
      if (gathered != nullptr) to.second = {out, mine_bytes};
      outgoing.push_back(&to);
    }
    if (gathered != nullptr || mine_bytes != 0) {
      Incoming& from = exchange_.from(channel, header(call));
      from.first_size = mine_bytes;
      from.window = space.subspan(peer * kWindow, kWindow);
      // Safe although we still send from this place: the peer sends a result only after it has all of our bytes.
      if (gathered != nullptr) from.second = {gathered + bounds[peer], peer_bytes};
      incoming.push_back(&from);
    }
  }
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  std::vector<const void*> sources(static_cast<std::size_t>(size_));
  std::size_t reduced = 0;
  exchange_.run([&] {
    bool any = false;
    while (reduced < mine_bytes) {
      const std::size_t n = std::min(kChunk, mine_bytes - reduced);
      const auto arrived = [&](const Incoming* from) { return from->first_got() >= reduced + n; };
      if (!std::ranges::all_of(incoming, arrived)) break;
      sources[me] = mine + reduced;
      for (const Incoming* from : incoming) {
        sources[static_cast<std::size_t>(from->channel->peer())] = from->window.data() + reduced % kWindow;
      }
      reduce(out + reduced, sources.data(), size_, n / element, size_);
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

void NetCollectives::all_gather(const Call& call, const std::byte* mine, std::byte* out) {
  const Algorithm algorithm = strategy_.choose(call, size_);
  if (algorithm >= Algorithm::doubling) return hop_all_gather(algorithm, call, mine, out);
  const auto bytes = static_cast<std::size_t>(call.bytes);
  exchange_.clear();
  for (Channel* const channel : peers_) {
    exchange_.to(channel, header(call)).first = {mine, bytes};
    exchange_.from(channel, header(call)).second = {out + static_cast<std::size_t>(channel->peer()) * bytes, bytes};
  }
  exchange_.run();
}

void NetCollectives::barrier(const Call& call) {
  const Algorithm algorithm = strategy_.choose(call, size_);
  if (algorithm == Algorithm::doubling) return hop_all_gather(algorithm, call, nullptr, nullptr);
  // Up and down again: only so does every rank hear of all others.
  if (algorithm == Algorithm::tree)
    return hop_all_reduce(algorithm, call, nullptr, find_reduction(Dtype::u8, Reduction::sum));
  exchange_.clear();
  for (Channel* const channel : peers_) {
    exchange_.to(channel, header(call));
    exchange_.from(channel, header(call));
  }
  exchange_.run();
}

void NetCollectives::broadcast(const Call& call, std::byte* data) {
  if (strategy_.choose(call, size_) == Algorithm::tree) {
    return run(call, 0, [&](std::byte*) {
      tree_broadcast(program_, tree_, call.root, {data, static_cast<std::size_t>(call.bytes), 1});
    });
  }
  const Bytes bytes(data, static_cast<std::size_t>(call.bytes));
  exchange_.clear();
  if (rank_ == call.root) {
    for (Channel* const channel : peers_) exchange_.to(channel, header(call)).first = bytes;
  } else {
    exchange_.from(channel(call.root), header(call)).second = bytes;
  }
  exchange_.run();
}

void NetCollectives::reduce(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  if (strategy_.choose(call, size_) == Algorithm::tree) {
    const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
    return run(call, tree_scratch(tree_, bytes, element), [&](std::byte* scratch) {
      const std::vector<int> owners{call.root};
      tree_reduce(program_, tree_, rank_, owners, in, {out, bytes, element}, combine_of(call, reduce), scratch);
    });
  }
  // All but the root have an empty piece, so that the rest of a whole all_reduce does not happen.
  std::vector<std::size_t> bounds(static_cast<std::size_t>(size_) + 1, 0);
  std::fill(bounds.begin() + call.root + 1, bounds.end(), bytes);
  pieces(call, in, out, nullptr, bounds, reduce);
}

void NetCollectives::gather(const Call& call, const std::byte* in, std::byte* out) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  exchange_.clear();
  if (rank_ == call.root) {
    if (bytes != 0) std::memmove(out + static_cast<std::size_t>(rank_) * bytes, in, bytes);
    for (Channel* const channel : peers_) {
      exchange_.from(channel, header(call)).second = {out + static_cast<std::size_t>(channel->peer()) * bytes, bytes};
    }
  } else {
    exchange_.to(channel(call.root), header(call)).first = {in, bytes};
  }
  exchange_.run();
}

void NetCollectives::scatter(const Call& call, const std::byte* in, std::byte* out) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  exchange_.clear();
  if (rank_ == call.root) {
    if (bytes != 0) std::memmove(out, in + static_cast<std::size_t>(rank_) * bytes, bytes);
    for (Channel* const channel : peers_) {
      exchange_.to(channel, header(call)).first = {in + static_cast<std::size_t>(channel->peer()) * bytes, bytes};
    }
  } else {
    exchange_.from(channel(call.root), header(call)).second = {out, bytes};
  }
  exchange_.run();
}

void NetCollectives::all_to_all(const Call& call, const std::byte* in, std::byte* out,
                                const std::vector<std::size_t>& send_counts,
                                const std::vector<std::size_t>& recv_counts) {
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  exchange_.clear();
  for (std::size_t rank = 0; rank < channels_.size(); ++rank) {
    const std::size_t send_bytes = send_counts[rank] * element;
    const std::size_t recv_bytes = recv_counts[rank] * element;
    if (Channel* const channel = channels_[rank]) {
      // Both ends of a pair must mean the same number of bytes; the pairs may differ.
      MessageHeader there = header(call);
      there.call.bytes = send_bytes;
      exchange_.to(channel, there).first = {in, send_bytes};
      MessageHeader here = header(call);
      here.call.bytes = recv_bytes;
      exchange_.from(channel, here).second = {out, recv_bytes};
    } else if (send_bytes != 0) {
      std::memcpy(out, in, send_bytes);
    }
    in += send_bytes;
    out += recv_bytes;
  }
  exchange_.run();
}

}  // namespace ferrule
