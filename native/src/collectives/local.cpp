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
    if (theirs != call) throw mismatch(rank_, call, rank, theirs);
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
void LocalCollectives::pipeline(const Call& call, std::size_t bytes, std::size_t piece, Fill&& fill, Combine&& combine,
                                Take&& take) {
  constexpr std::uint64_t kLag = 1;
  static_assert(2 * kLag < kChunks, "a chunk buffer must be free again before its next turn, or all ranks wait");
  meet(call);
  const std::uint64_t count = (bytes + piece - 1) / piece;
  const std::uint64_t base = chunks_;
  const auto run = [&](auto&& stage, std::uint64_t index) {
    const std::size_t at = static_cast<std::size_t>(index) * piece;
    stage(at, std::min(piece, bytes - at), base + index);
  };
  for (std::uint64_t step = 0; step < count + 2 * kLag; ++step) {
    if (step < count) {
      // The buffer is free when all ranks are done with the chunk that was in it before.
      if (base + step >= kChunks) wait_for(&RankBlock::consumed, base + step + 1 - kChunks);
      run(fill, step);
      publish(&RankBlock::filled, base + step + 1);
    }
    if (step >= kLag && step - kLag < count) {
      wait_for(&RankBlock::filled, base + step - kLag + 1);
      run(combine, step - kLag);
      publish(&RankBlock::reduced, base + step - kLag + 1);
    }
    if (step >= 2 * kLag) {
      wait_for(&RankBlock::reduced, base + step - 2 * kLag + 1);
      run(take, step - 2 * kLag);
      publish(&RankBlock::consumed, base + step - 2 * kLag + 1);
    }
  }
  chunks_ = base + count;
  ++round_;
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
  // Rank r reduces the r-th part of every chunk. Only r reads that part of its own buffer, so the result goes there.
  const auto part = [&](std::size_t size, std::size_t rank) { return part_begin(size, element, rank, n); };
  pipeline(
      call, bytes, kChunkBytes,
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        const std::size_t begin = part(size, me);
        const std::size_t end = part(size, me + 1);
        std::memcpy(mine(buffer), data + at, begin);
        std::memcpy(mine(buffer) + end, data + at + end, size - end);
      },
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        const std::size_t begin = part(size, me);
        const std::size_t length = part(size, me + 1) - begin;
        std::byte* const own = data + at + begin;
        for (int rank = 0; rank < size_; ++rank) {
          sources_[static_cast<std::size_t>(rank)] = chunk(rank, buffer) + begin;
        }
        sources_[me] = own;
        reduce(own, sources_.data(), size_, length / element, size_);
        std::memcpy(mine(buffer) + begin, own, length);
      },
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        for (int rank = 0; rank < size_; ++rank) {
          if (rank == rank_) continue;
          const std::size_t begin = part(size, static_cast<std::size_t>(rank));
          const std::size_t end = part(size, static_cast<std::size_t>(rank) + 1);
          std::memcpy(data + at + begin, chunk(rank, buffer) + begin, end - begin);
        }
      });
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
  pipeline(
      call, bytes, kChunkBytes,
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) { std::memcpy(this->mine(buffer), mine + at, size); },
      [](std::size_t, std::size_t, std::uint64_t) {},
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        for (int rank = 0; rank < size_; ++rank) {
          if (rank == rank_) continue;
          std::memcpy(out + static_cast<std::size_t>(rank) * bytes + at, chunk(rank, buffer), size);
        }
      });
}

void LocalCollectives::reduce_scatter(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce) {
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const auto me = static_cast<std::size_t>(rank_);
  const auto n = static_cast<std::size_t>(size_);
  const std::size_t block_bytes = static_cast<std::size_t>(call.bytes) / n;
  // A chunk holds one piece of every rank's block, and each begins on a cache line.
  const std::size_t piece = kChunkBytes / n / kLine * kLine;
  pipeline(
      call, block_bytes, piece,
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        for (std::size_t rank = 0; rank < n; ++rank) {
          if (rank != me) std::memcpy(mine(buffer) + rank * piece, in + rank * block_bytes + at, size);
        }
      },
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        for (int rank = 0; rank < size_; ++rank) {
          sources_[static_cast<std::size_t>(rank)] = chunk(rank, buffer) + me * piece;
        }
        sources_[me] = in + me * block_bytes + at;
        reduce(out + at, sources_.data(), size_, size / element, size_);
      },
      [](std::size_t, std::size_t, std::uint64_t) {});
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
  const auto begin_of = [&](std::size_t size, int rank) {
    return part_begin(size, element, static_cast<std::size_t>(rank), static_cast<std::size_t>(size_));
  };
  pipeline(
      call, bytes, kChunkBytes,
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) { std::memcpy(mine(buffer), in + at, size); },
      [&](std::size_t, std::size_t size, std::uint64_t buffer) {
        // No other rank reads this part of our own buffer, so the result goes there.
        const std::size_t begin = begin_of(size, rank_);
        for (int rank = 0; rank < size_; ++rank) sources_[static_cast<std::size_t>(rank)] = chunk(rank, buffer) + begin;
        reduce(mine(buffer) + begin, sources_.data(), size_, (begin_of(size, rank_ + 1) - begin) / element, size_);
      },
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        for (int rank = 0; rank < size_ && root; ++rank) {
          const std::size_t begin = begin_of(size, rank);
          std::memcpy(out + at + begin, chunk(rank, buffer) + begin, begin_of(size, rank + 1) - begin);
        }
      });
}

void LocalCollectives::broadcast(const Call& call, std::byte* data) {
  const bool root = rank_ == call.root;
  pipeline(
      call, static_cast<std::size_t>(call.bytes), kChunkBytes,
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        if (root) std::memcpy(mine(buffer), data + at, size);
      },
      [](std::size_t, std::size_t, std::uint64_t) {},
      [&](std::size_t at, std::size_t size, std::uint64_t buffer) {
        if (!root) std::memcpy(data + at, chunk(call.root, buffer), size);
      });
}

void LocalCollectives::barrier(const Call& call) {
  meet(call);
  ++round_;
}

}  // namespace ferrule
