#include "collectives/local.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ferrule {

LocalCollectives::LocalCollectives(const Segment& segment, int rank, const std::vector<int>& indices,
                                   const std::vector<Channel*>& channels, Waiter& waiter)
    : rank_(rank), size_(static_cast<int>(indices.size())), waiter_(waiter), sources_(indices.size()) {
  for (const int index : indices) blocks_.push_back(&segment.rank(index));
  for (Channel* channel : channels) {
    if (channel == nullptr) continue;
    auto* const local = dynamic_cast<ShmChannel*>(channel);
    if (local == nullptr) {
      throw std::invalid_argument("rank " + std::to_string(channel->peer()) +
                                  " is on this rank's segment, but is joined " + "by " + channel->transport() +
                                  "; its channels must be of that segment");
    }
    peers_.push_back(local);
  }
}

void LocalCollectives::notify_all() {
  for (ShmChannel* peer : peers_) peer->notify();
}

void LocalCollectives::meet(const Call& call) {
  CallLine& mine = slot(rank_).line;
  mine.call = call;
  mine.round.store(round_ + 1, std::memory_order_release);
  notify_all();
  int arrived = 0;
  const auto has_arrived = [&](int rank) {
    return slot(rank).line.round.load(std::memory_order_acquire) == round_ + 1;
  };
  waiter_.until(
      [&] {
        while (arrived < size_ && has_arrived(arrived)) ++arrived;
        return arrived == size_ ? Progress::done : Progress::idle;
      },
      [&](int rank) {
        return Wanted{!has_arrived(rank), false};
      });
  for (int rank = 0; rank < size_; ++rank) {
    const Call& theirs = slot(rank).line.call;
    if (theirs == call) continue;
    throw Failure(Status::mismatch, rank,
                  "rank " + std::to_string(rank_) + " called " + describe(call) + " but rank " + std::to_string(rank) +
                      " called " + describe(theirs));
  }
}

void LocalCollectives::publish(Counter RankBlock::*counter, std::uint64_t value) {
  (block(rank_).*counter).value.store(value, std::memory_order_release);
  notify_all();
}

const Call* LocalCollectives::ahead(int rank) {
  const CallLine& line = slot(rank).line;
  return line.round.load(std::memory_order_acquire) == round_ + 1 ? &line.call : nullptr;
}

void LocalCollectives::wait_for(Counter RankBlock::*counter, std::uint64_t value) {
  int ready = 0;
  const auto is_ready = [&](int rank) {
    return rank == rank_ || (block(rank).*counter).value.load(std::memory_order_acquire) >= value;
  };
  waiter_.until(
      [&] {
        while (ready < size_ && is_ready(ready)) ++ready;
        return ready == size_ ? Progress::done : Progress::idle;
      },
      [&](int rank) {
        return Wanted{!is_ready(rank), false};
      });
}

template <class Fill, class Combine, class Take>
void LocalCollectives::pipeline(std::uint64_t count, Fill&& fill, Combine&& combine, Take&& take) {
  constexpr std::uint64_t kLag = 1;
  static_assert(2 * kLag < kChunks, "a chunk buffer must be free again before its next turn, or all ranks wait");
  const std::uint64_t base = chunks_;
  for (std::uint64_t step = 0; step < count + 2 * kLag; ++step) {
    if (step < count) {
      // The buffer is free when all ranks are done with the chunk that was in it before.
      if (base + step >= kChunks) wait_for(&RankBlock::consumed, base + step + 1 - kChunks);
      fill(step, chunk(rank_, base + step));
      publish(&RankBlock::filled, base + step + 1);
    }
    if (step >= kLag && step - kLag < count) {
      wait_for(&RankBlock::filled, base + step - kLag + 1);
      combine(step - kLag, base + step - kLag);
      publish(&RankBlock::reduced, base + step - kLag + 1);
    }
    if (step >= 2 * kLag) {
      wait_for(&RankBlock::reduced, base + step - 2 * kLag + 1);
      take(step - 2 * kLag, base + step - 2 * kLag);
      publish(&RankBlock::consumed, base + step - 2 * kLag + 1);
    }
  }
  chunks_ = base + count;
}

std::size_t LocalCollectives::part(std::size_t bytes, std::size_t element, std::size_t index, std::size_t count) {
  const std::size_t elements = bytes / element;
  return (elements / count * index + std::min(index, elements % count)) * element;
}

void LocalCollectives::all_reduce(const Call& call, std::byte* data, ReduceFunction reduce) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const auto me = static_cast<std::size_t>(rank_);
  const auto n = static_cast<std::size_t>(size_);
  if (bytes <= kSlotBytes) {
    if (bytes != 0) std::memcpy(slot(rank_).data, data, bytes);
    meet(call);
    for (int rank = 0; rank < size_; ++rank) sources_[static_cast<std::size_t>(rank)] = slot(rank).data;
    sources_[me] = data;
    if (bytes != 0) reduce(data, sources_.data(), size_, bytes / element, size_);
    ++round_;
    return;
  }
  meet(call);
  // Rank r reduces the r-th part of every chunk. Only r reads that part of its own buffer, so the result goes there.
  const auto part = [&](std::size_t chunk_bytes, std::size_t rank) {
    return LocalCollectives::part(chunk_bytes, element, rank, n);
  };
  const auto size_of = [&](std::uint64_t index) {
    return std::min(kChunkBytes, bytes - static_cast<std::size_t>(index) * kChunkBytes);
  };
  pipeline((bytes + kChunkBytes - 1) / kChunkBytes,
           [&](std::uint64_t index, std::byte* buffer) {
             const std::size_t size = size_of(index);
             const std::byte* const from = data + index * kChunkBytes;
             const std::size_t begin = part(size, me);
             const std::size_t end = part(size, me + 1);
             std::memcpy(buffer, from, begin);
             std::memcpy(buffer + end, from + end, size - end);
           },
           [&](std::uint64_t index, std::uint64_t buffer) {
             const std::size_t size = size_of(index);
             const std::size_t begin = part(size, me);
             const std::size_t mine = part(size, me + 1) - begin;
             std::byte* const own = data + index * kChunkBytes + begin;
             for (int rank = 0; rank < size_; ++rank)
               sources_[static_cast<std::size_t>(rank)] = chunk(rank, buffer) + begin;
             sources_[me] = own;
             reduce(own, sources_.data(), size_, mine / element, size_);
             std::memcpy(chunk(rank_, buffer) + begin, own, mine);
           },
           [&](std::uint64_t index, std::uint64_t buffer) {
             const std::size_t size = size_of(index);
             for (int rank = 0; rank < size_; ++rank) {
               if (rank == rank_) continue;
               const std::size_t begin = part(size, static_cast<std::size_t>(rank));
               const std::size_t end = part(size, static_cast<std::size_t>(rank) + 1);
               std::memcpy(data + index * kChunkBytes + begin, chunk(rank, buffer) + begin, end - begin);
             }
           });
  ++round_;
}

void LocalCollectives::all_gather(const Call& call, const std::byte* mine, std::byte* out) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  if (bytes <= kSlotBytes) {
    if (bytes != 0) std::memcpy(slot(rank_).data, mine, bytes);
    meet(call);
    for (int rank = 0; rank < size_ && bytes != 0; ++rank) {
      if (rank != rank_) std::memcpy(out + static_cast<std::size_t>(rank) * bytes, slot(rank).data, bytes);
    }
    ++round_;
    return;
  }
  meet(call);
  const auto size_of = [&](std::uint64_t index) {
    return std::min(kChunkBytes, bytes - static_cast<std::size_t>(index) * kChunkBytes);
  };
  pipeline(
      (bytes + kChunkBytes - 1) / kChunkBytes,
      [&](std::uint64_t index, std::byte* buffer) { std::memcpy(buffer, mine + index * kChunkBytes, size_of(index)); },
      [](std::uint64_t, std::uint64_t) {},
      [&](std::uint64_t index, std::uint64_t buffer) {
        for (int rank = 0; rank < size_; ++rank) {
          if (rank == rank_) continue;
          std::memcpy(out + static_cast<std::size_t>(rank) * bytes + index * kChunkBytes, chunk(rank, buffer),
                      size_of(index));
        }
      });
  ++round_;
}

void LocalCollectives::reduce_scatter(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce) {
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const auto me = static_cast<std::size_t>(rank_);
  const auto n = static_cast<std::size_t>(size_);
  const std::size_t block_bytes = static_cast<std::size_t>(call.bytes) / n;
  // A chunk holds one piece of every rank's block, and each begins on a cache line.
  const std::size_t piece = kChunkBytes / n / kLine * kLine;
  meet(call);
  const auto size_of = [&](std::uint64_t index) {
    return std::min(piece, block_bytes - static_cast<std::size_t>(index) * piece);
  };
  pipeline((block_bytes + piece - 1) / piece,
           [&](std::uint64_t index, std::byte* buffer) {
             for (std::size_t rank = 0; rank < n; ++rank) {
               if (rank == me) continue;
               std::memcpy(buffer + rank * piece, in + rank * block_bytes + index * piece, size_of(index));
             }
           },
           [&](std::uint64_t index, std::uint64_t buffer) {
             for (int rank = 0; rank < size_; ++rank) {
               sources_[static_cast<std::size_t>(rank)] = chunk(rank, buffer) + me * piece;
             }
             sources_[me] = in + me * block_bytes + index * piece;
             reduce(out + index * piece, sources_.data(), size_, size_of(index) / element, size_);
           },
           [](std::uint64_t, std::uint64_t) {});
  ++round_;
}

void LocalCollectives::reduce(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const bool root = rank_ == call.root;
  if (bytes <= kSlotBytes) {
    if (bytes != 0 && !root) std::memcpy(slot(rank_).data, in, bytes);
    meet(call);
    if (root && bytes != 0) {
      for (int rank = 0; rank < size_; ++rank) sources_[static_cast<std::size_t>(rank)] = slot(rank).data;
      sources_[static_cast<std::size_t>(rank_)] = in;
      reduce(out, sources_.data(), size_, bytes / element, size_);
    }
    ++round_;
    return;
  }
  meet(call);
  const auto size_of = [&](std::uint64_t index) {
    return std::min(kChunkBytes, bytes - static_cast<std::size_t>(index) * kChunkBytes);
  };
  const auto begin_of = [&](std::uint64_t index, int rank) {
    return part(size_of(index), element, static_cast<std::size_t>(rank), static_cast<std::size_t>(size_));
  };
  pipeline(
      (bytes + kChunkBytes - 1) / kChunkBytes,
      [&](std::uint64_t index, std::byte* buffer) { std::memcpy(buffer, in + index * kChunkBytes, size_of(index)); },
      [&](std::uint64_t index, std::uint64_t buffer) {
        // No other rank reads this part of our own buffer, so the result goes there.
        const std::size_t begin = begin_of(index, rank_);
        for (int rank = 0; rank < size_; ++rank) sources_[static_cast<std::size_t>(rank)] = chunk(rank, buffer) + begin;
        reduce(chunk(rank_, buffer) + begin, sources_.data(), size_, (begin_of(index, rank_ + 1) - begin) / element,
               size_);
      },
      [&](std::uint64_t index, std::uint64_t buffer) {
        for (int rank = 0; rank < size_ && root; ++rank) {
          const std::size_t begin = begin_of(index, rank);
          std::memcpy(out + index * kChunkBytes + begin, chunk(rank, buffer) + begin,
                      begin_of(index, rank + 1) - begin);
        }
      });
  ++round_;
}

void LocalCollectives::broadcast(const Call& call, std::byte* data) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  const bool root = rank_ == call.root;
  const auto size_of = [&](std::uint64_t index) {
    return std::min(kChunkBytes, bytes - static_cast<std::size_t>(index) * kChunkBytes);
  };
  meet(call);
  pipeline((bytes + kChunkBytes - 1) / kChunkBytes,
           [&](std::uint64_t index, std::byte* buffer) {
             if (root) std::memcpy(buffer, data + index * kChunkBytes, size_of(index));
           },
           [](std::uint64_t, std::uint64_t) {},
           [&](std::uint64_t index, std::uint64_t buffer) {
             if (!root) std::memcpy(data + index * kChunkBytes, chunk(call.root, buffer), size_of(index));
           });
  ++round_;
}

void LocalCollectives::barrier(const Call& call) {
  meet(call);
  ++round_;
}

}  // namespace ferrule
