// A group of ranks: its streams, its operations and its end.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/net.h"
#include "liveness/heartbeat.h"
#include "group/message_queues.h"
#include "group/queue.h"
#include "transports/shm/shm_segment.h"
#include "wait/maintenance_thread.h"

namespace ferrule {

class LocalCollectives;

class Group {
 public:
  explicit Group(const ferrule_group_options& options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // All operations of one call are of one stream.
  ferrule_status run(const ferrule_operation* operations, std::size_t count, double timeout);
  ferrule_status start(const ferrule_operation* operations, std::size_t count, double timeout,
                       std::shared_ptr<Work>& work);

  ferrule_status close();
  void abort(const char* reason);
  // Somebody else (the heartbeat) knows that this group cannot go on. From any thread.
  void fail(const Failure& cause);
  ferrule_failure failure() const;

  // From any thread; see ferrule_group_add_rail and ferrule_group_rails.
  ferrule_status add_rail(int stream, int peer, int rail, int fd);
  std::vector<RailState> rails(int stream, int peer) const;

 private:
  struct Track {
    Track(std::vector<Channel*> channels, const Waiter::Settings& settings, std::atomic<std::uint32_t>* sleeping,
          LocalCollectives* const& local, std::function<void()> serve);
    std::vector<std::unique_ptr<Channel>> owned;
    std::vector<Channel*> channels;  // by rank; nullptr for this one
    Waiter waiter;
    Exchange exchange;
    Queue queue;
  };

  Track& track(Stream stream) { return *tracks_[static_cast<std::size_t>(stream)]; }
  static Stream stream_of(const ferrule_operation& operation);
  bool valid(const ferrule_operation* operations, std::size_t count) const;

  // What the thread that holds a stream does: run one caller's operations, or all that is queued.
  ferrule_status execute(const Batch& batch);
  ferrule_status execute_messages(const Batch& batch);
  void serve_collectives();
  void serve_messages();
  template <class Body>
  ferrule_status guard(Stream stream, Body&& body);

  void collective(const ferrule_operation& operation, const Batch& batch);
  void packed(const ferrule_operation* operations, std::size_t count, const Batch& batch);
  std::size_t packable(const ferrule_operation* operations, std::size_t count) const;
  void dispatch(const Call& call, const ferrule_operation& operation);

  void end(const Failure& cause, double seconds, int stream);
  // Let the channels of idle streams do their housekeeping; false when there will be none any more.
  bool maintain();
  Channel* channel(int stream, int peer) const;  // with end_mutex_ held; nullptr if there is none
  // A connection ended without a word. The heartbeat soon says why, if anybody knows.
  void await_words();

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
  Failure cause_{FERRULE_OK, -1, {}};
  double cause_seconds_ = 0;
  bool closed_ = false;
  std::unique_ptr<MaintenanceThread> maintenance_;  // where a channel has rails

  const std::shared_ptr<Heartbeat> heartbeat_;  // or nullptr
  Heartbeat::SeatPointer seat_;
};

}  // namespace ferrule
