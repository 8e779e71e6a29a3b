// A group of ranks: its streams, its operations and its end.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/net.h"
#include "group/message_queues.h"
#include "group/queue.h"
#include "liveness/heartbeat.h"
#include "transports/shm/shm_segment.h"
#include "wait/maintenance_thread.h"

namespace ferrule {

class LocalCollectives;

struct GroupOptions {
  int rank = 0;
  std::uint64_t epoch = 0;  // the same on all ranks, different for every group ever made
  // Per stream a channel per rank, nullptr for this one.
  std::array<std::vector<std::unique_ptr<Channel>>, kStreams> channels;
  std::unique_ptr<Segment> segment;  // or nullptr
  std::vector<int> local_index;      // into the segment, by rank, -1 for those that have not mapped it; or empty
  Waiter::Settings wait;
  Strategy strategy;
  std::shared_ptr<Heartbeat> heartbeat;  // or nullptr
  std::vector<int> heartbeat_ranks;      // the heartbeat's ranks of the group's
};

// Reason for which a group is closed: the first cause, kept for good.
struct GroupFailure {
  Status status;
  int rank;        // the rank at fault, or -1
  double seconds;  // how long the operation had taken when it failed
  std::string message;
};

// Every stream is driven by one thread at a time (a second one gets Status::busy). Works that were started go on by
// themselves, those of collectives in the order of their start. What is not an operation may be called from any thread.
class Group {
 public:
  // Throws std::invalid_argument where the options contradict each other.
  explicit Group(GroupOptions options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Run operations of one stream that all ranks run together (sends and receives at once, reductions of one kind as one
  // message), within `timeout` seconds.
  Status run(const Operation* operations, std::size_t count, double timeout);
  // The same without waiting: the arrays must stay until the work is done.
  Status start(const Operation* operations, std::size_t count, double timeout, std::shared_ptr<Work>& work);

  // Finishes what was started, says goodbye to the peers and closes the sockets. Status::busy while another thread runs
  // an operation.
  Status close();
  // Ends whatever the group does, here and on every peer.
  void abort(std::string reason);
  // The heartbeat knows that this group cannot go on.
  void fail(const Failure& cause);
  GroupFailure failure() const;

  // Give a channel a fresh socket for one of its rails, in the place of the old one; the peer must get the other end.
  // Status::invalid: the group is closed or has no such rail, and the socket stays the caller's.
  Status add_rail(int stream, int peer, int rail, int fd);
  std::vector<RailState> rails(int stream, int peer) const;

  // Memory of a device for messages from and to `peer`. Throws std::runtime_error where that cannot be.
  std::shared_ptr<DeviceRegion> register_memory(int peer, const DeviceMemory& memory) const;

 private:
  struct Track {
    Track(std::vector<std::unique_ptr<Channel>> channels, const Waiter::Settings& settings,
          std::atomic<std::uint32_t>* sleeping, LocalCollectives* const& local, std::function<void()> serve);
    std::vector<std::unique_ptr<Channel>> owned;
    std::vector<Channel*> channels;  // by rank; nullptr for this one
    Waiter waiter;
    Exchange exchange;
    Queue queue;
  };

  Track& track(Stream stream) { return *tracks_[static_cast<std::size_t>(stream)]; }
  static Stream stream_of(const Operation& operation);
  bool valid(const Operation* operations, std::size_t count) const;

  // Work of the thread that holds a stream: it runs one caller's operations, or all that is queued.
  Status execute(const Batch& batch);
  Status execute_messages(const Batch& batch);
  void serve_collectives();
  void serve_messages();
  // Held while an operation runs.
  class Entered;
  template <class Body>
  Status guard(Stream stream, Body&& body);

  void collective(const Operation& operation, const Batch& batch);
  void packed(const Operation* operations, std::size_t count, const Batch& batch);
  std::size_t packable(const Operation* operations, std::size_t count) const;
  void dispatch(const Call& call, const Operation& operation);

  void end(const Failure& cause, double seconds, int stream);
  // Let the channels of idle streams do their housekeeping; false when there will be none any more.
  bool maintain();
  Channel* channel(int stream, int peer) const;  // with end_mutex_ held; nullptr if there is none
  Status ended_status() const;
  // A connection ended without a close notice. The heartbeat soon says why, if it knows.
  void await_notice();

  const int rank_;
  const int size_;
  const std::uint64_t epoch_;
  const std::unique_ptr<Segment> segment_;
  std::unique_ptr<LocalCollectives> local_;  // where every rank has mapped the segment
  LocalCollectives* local_view_ = nullptr;
  std::array<std::unique_ptr<Track>, kStreams> tracks_;
  std::unique_ptr<NetCollectives> net_;
  std::unique_ptr<MessageQueues> queues_;
  std::uint64_t sequence_ = 0;  // collectives so far
  std::vector<std::byte> pack_;

  std::atomic<bool> ended_{false};
  mutable std::mutex end_mutex_;  // guards the three below, and the sockets against close() during abort()
  std::condition_variable told_;
  Failure cause_{Status::ok, -1, {}};
  double cause_seconds_ = 0;
  bool closed_ = false;
  std::unique_ptr<MaintenanceThread> maintenance_;  // where a channel has rails

  const std::shared_ptr<Heartbeat> heartbeat_;  // or nullptr
  Heartbeat::SeatPointer seat_;
};

}  // namespace ferrule
