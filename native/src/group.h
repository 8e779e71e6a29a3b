// A group of ranks: its channels, its deadline and its end.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "exchange.h"
#include "reduce.h"
#include "shm_segment.h"

namespace ferrule {

class LocalCollectives;

class Group {
 public:
  explicit Group(const ferrule_group_options& options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  ferrule_status all_reduce(void* data, std::size_t count, ferrule_dtype dtype, ferrule_reduction reduction,
                            double timeout);
  ferrule_status all_gather(const void* in, void* out, std::size_t count, ferrule_dtype dtype, double timeout);
  ferrule_status reduce_scatter(const void* in, void* out, std::size_t count, ferrule_dtype dtype,
                                ferrule_reduction reduction, double timeout);
  ferrule_status broadcast(void* data, std::size_t count, ferrule_dtype dtype, int root, double timeout);
  ferrule_status send(const void* data, std::size_t count, ferrule_dtype dtype, int peer, double timeout);
  ferrule_status recv(void* data, std::size_t count, ferrule_dtype dtype, int peer, double timeout);
  ferrule_status barrier(double timeout);

  ferrule_status close();
  void abort(const char* reason);
  ferrule_failure failure() const;
  const char* transport(int peer) const;

 private:
  // Run one operation: one at a time, never on a closed group, and any failure in it closes the group. The call
  // gets its number from `counter`, which both ends of it count alike.
  template <class Body>
  ferrule_status operate(Call& call, std::uint64_t& counter, double timeout, Body&& body);
  MessageHeader header(const Call& call) const { return {epoch_, call}; }
  bool is_peer(int rank) const { return rank >= 0 && rank < size_ && rank != rank_; }
  void end(const Failure& cause, double seconds);

  // Over channels (collectives_net.cpp).
  void exchange_all_reduce(const Call& call, std::byte* data, ReduceFunction reduce);
  void exchange_at_once(const Call& call, std::byte* data, ReduceFunction reduce);
  void exchange_pieces(const Call& call, const std::byte* data, std::byte* out, std::byte* gathered,
                       const std::vector<std::size_t>& bounds, ReduceFunction reduce);
  void exchange_all_gather(const Call& call, const std::byte* in, std::byte* out);
  void exchange_empty(const Call& call);
  Bytes scratch(std::size_t bytes);

  const int rank_;
  const int size_;
  const std::uint64_t epoch_;
  const std::unique_ptr<Segment> segment_;
  std::vector<std::unique_ptr<Channel>> owned_;
  std::vector<Channel*> channels_;  // by rank; nullptr for this one
  std::unique_ptr<Waiter> waiter_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<LocalCollectives> local_;  // where every rank has mapped the segment
  std::uint64_t sequence_ = 0;               // collectives so far
  std::vector<std::uint64_t> sent_;          // messages to, and from, every rank
  std::vector<std::uint64_t> received_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;

  std::atomic<bool> busy_{false};
  std::atomic<bool> ended_{false};
  mutable std::mutex end_mutex_;  // guards the three below, and the sockets against close() during abort()
  Failure cause_{FERRULE_OK, -1, {}};
  double cause_seconds_ = 0;
  bool closed_ = false;
};

}  // namespace ferrule
