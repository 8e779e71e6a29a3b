// Collectives over channels.
#pragma once

#include <memory>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/exchange.h"
#include "reduce/reduce.h"

namespace ferrule {

// The same on all ranks, or they would wait for each other in vain.
struct Strategy {
  std::vector<Decision> decisions;
  std::vector<int> tree;  // parent by rank; empty: none
  std::vector<int> ring;  // ranks in order; empty: none

  Algorithm choose(const Call& call, int size) const;
};

class NetCollectives {
 public:
  // `channels[rank]` is nullptr for this rank.
  NetCollectives(int rank, std::uint64_t epoch, const std::vector<Channel*>& channels, Exchange& exchange,
                 Waiter& waiter, Strategy strategy);

  void all_reduce(const Call& call, std::byte* data, ReduceFunction reduce);
  // The same with 8-bit blocks on the wire, for f32, bf16 and f16 by sum or avg (quantized.cpp).
  void all_reduce_quantized(const Call& call, std::byte* data);
  // `mine` is this rank's place in `out` and already holds its part.
  void all_gather(const Call& call, const std::byte* mine, std::byte* out);
  void reduce_scatter(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce);
  void broadcast(const Call& call, std::byte* data);
  void reduce(const Call& call, const std::byte* in, std::byte* out, ReduceFunction reduce);
  void gather(const Call& call, const std::byte* in, std::byte* out);
  void scatter(const Call& call, const std::byte* in, std::byte* out);
  // Parts in elements of `element` bytes; counts by rank.
  void all_to_all(const Call& call, const std::byte* in, std::byte* out, const std::vector<std::size_t>& send_counts,
                  const std::vector<std::size_t>& recv_counts);
  void barrier(const Call& call);

 private:
  MessageHeader header(const Call& call) const { return {epoch_, call}; }
  Bytes scratch(std::size_t bytes);  // from a cache line on
  Channel* channel(int rank) const { return channels_[static_cast<std::size_t>(rank)]; }

  // By programs: the hop by hop ways (hops.cpp).
  Combine combine_of(const Call& call, ReduceFunction reduce) const;
  template <class Write>
  void run(const Call& call, std::size_t scratch_bytes, Write&& write) {
    program_.clear(header(call));
    write(scratch(scratch_bytes).data());
    program_.run(waiter_);
  }
  void hop_all_reduce(Algorithm algorithm, const Call& call, std::byte* data, ReduceFunction reduce);
  void hop_all_gather(Algorithm algorithm, const Call& call, const std::byte* mine, std::byte* out);
  void hop_reduce_scatter(Algorithm algorithm, const Call& call, const std::byte* in, std::byte* out,
                          ReduceFunction reduce);

  void once(const Call& call, std::byte* data, ReduceFunction reduce);
  void swap(Channel& peer, const MessageHeader& call, ConstBytes payload, Bytes whole);
  void pieces(const Call& call, const std::byte* data, std::byte* out, std::byte* gathered,
              const std::vector<std::size_t>& bounds, ReduceFunction reduce);

  const int rank_;
  const int size_;
  const std::uint64_t epoch_;
  const std::vector<Channel*> channels_;  // by rank; nullptr for this one
  std::vector<Channel*> peers_;           // the others
  Exchange& exchange_;
  Waiter& waiter_;
  const Strategy strategy_;
  Tree tree_;
  Ring ring_;
  Program program_;
  std::vector<const void*> sources_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace ferrule
