// Collectives of ranks that all share one memory segment: data are read where the peer put them.
#pragma once

#include <vector>

#include "reduce/reduce.h"
#include "transports/shm/shm_channel.h"
#include "wait/wait.h"

namespace ferrule {

class LocalCollectives {
 public:
  // `indices[rank]`: the rank's place in the segment. `channels[rank]` are ShmChannels, nullptr for this rank.
  LocalCollectives(const Segment& segment, int rank, const std::vector<int>& indices,
                   const std::vector<Channel*>& channels, Waiter& waiter);

  void all_reduce(const Call& call, std::byte* data, ReduceFunction reduce);
  // `mine` is this rank's place in `out` and already holds its part.
  void all_gather(const Call& call, const std::byte* mine, std::byte* out);
  void reduce_scatter(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce);
  // `out` matters at the root only.
  void reduce(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce);
  // For what does not fit into the rings between the root and the others: it writes once, and all read.
  void broadcast(const Call& call, std::byte* data);
  void barrier(const Call& call);

  // Call of `rank` if it is in a collective here that this rank has not entered: it waits for us.
  const Call* ahead(int rank);

 private:
  Slot& slot(int rank) { return block(rank).slots[round_ & 1]; }
  RankBlock& block(int rank) { return *blocks_[static_cast<std::size_t>(rank)]; }
  std::byte* chunk(int rank, std::uint64_t index) { return block(rank).chunks[index % kChunks]; }

  // Publish what we called (and what lies in our slot), wait until all have, and compare.
  void meet(const Call& call);
  void publish(Counter RankBlock::*counter, std::uint64_t value);
  void wait_for(Counter RankBlock::*counter, std::uint64_t value);
  void notify_all();

  // A whole large collective: `bytes` go in pieces through `fill` (put our part into our chunk buffer), `combine` (all
  // ranks have filled theirs) and `take` (all ranks have combined), each some pieces behind the last. All are called
  // with where the piece begins, its size, and the number of the buffer.
  template <class Fill, class Combine, class Take>
  void pipeline(const Call& call, std::size_t bytes, std::size_t piece, Fill&& fill, Combine&& combine, Take&& take);
  std::byte* mine(std::uint64_t buffer) { return chunk(rank_, buffer); }

  const int rank_;
  const int size_;
  Waiter& waiter_;
  std::vector<RankBlock*> blocks_;
  std::vector<ShmChannel*> peers_;
  std::vector<const void*> sources_;
  std::uint64_t round_ = 0;   // collectives so far
  std::uint64_t chunks_ = 0;  // chunks of all pipelines so far
};

}  // namespace ferrule
