// Heartbeats between all ranks of a job: the sockets and the thread around the failure detector.
//
// One native thread per job and process, whatever Python does meanwhile; groups made by split share it. It watches
// connections of its own, which carry no data: a peer is alive while any of them brings beats. When one is lost, the
// groups that it is in end at once, idle or not. When a group ends here for any reason, its members elsewhere are
// told over the same connections: a data connection can only end, and its peer would be blamed for that.
#pragma once

#include <poll.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "liveness/failure_detector.h"
#include "liveness/heartbeat_message.h"
#include "wait/wake_pipe.h"

namespace ferrule {

constexpr std::size_t kMaxRails = 64;

class Heartbeat {
 public:
  struct Settings {
    int rank;
    int size;
    std::uint64_t epoch;
    Clock::duration interval;
    Clock::duration limit;  // zero: silence is no fault, only the end of all connections is
  };

  // A group's seat at the table.
  class Seat {
   public:
    // `ranks`: the heartbeat's rank of every rank of the group. `fail` ends the group, quickly.
    Seat(std::uint64_t epoch, std::vector<int> ranks, std::function<void(const Failure&)> fail)
        : epoch_(epoch), ranks_(std::move(ranks)), fail_(std::move(fail)) {}

   private:
    friend class Heartbeat;
    int group_rank(int rank) const;  // -1: not of this group
    void deliver(const Failure& cause);
    void clear();

    const std::uint64_t epoch_;
    const std::vector<int> ranks_;
    std::mutex mutex_;  // while it is held the group cannot go away
    std::function<void(const Failure&)> fail_;
  };
  using SeatPointer = std::shared_ptr<Seat>;

  struct Health {
    Presence presence;
    Clock::duration silence;
    std::vector<bool> rails;
    std::string reason;  // why it is lost
  };

  // Throws std::invalid_argument for a rank or times that are out of range.
  explicit Heartbeat(const Settings& settings);
  ~Heartbeat() { close(); }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // One more connection to a peer, or a new one for a rail of it (below kMaxRails). `name`: for the reason
  // why a peer is lost. `via`: the rank that relays it, or -1. The descriptor is the heartbeat's from here on, also on
  // failure; throws std::invalid_argument.
  void add(int peer, std::size_t rail, int fd, std::string name, int via);

  void join(const SeatPointer& seat);
  // The group is closed. With the last one the peers learn that this rank may go.
  void leave(const SeatPointer& seat);
  // The group ended on this rank. Its other members are told before this returns, as far as their sockets take it.
  void tell(const Seat& seat, const Failure& cause);

  int rank() const { return rank_; }
  int size() const { return detector_.size(); }
  Health health(int peer) const;
  bool closed() const;
  // Say goodbye and stop.
  void close();

 private:
  struct Wire {
    int fd = -1;
    HeartbeatReader reader;
    std::vector<std::byte> unsent;
  };
  struct Place {
    int peer;
    std::size_t rail;
  };
  struct Delivery {
    SeatPointer seat;
    Failure cause;
  };
  // The verdict on a group that is not made here yet.
  struct Early {
    int from;
    HeartbeatMessage message;
  };

  void run();
  Clock::time_point wake_time() const;
  void collect_polls();
  void serve(Place place, Clock::time_point now);
  void end_wire(Place place, int error, Clock::time_point now);
  void judge(Clock::time_point now);
  void beat(Clock::time_point now);
  void deliver(std::unique_lock<std::mutex>& lock);

  void hear(int from, const HeartbeatMessage& message);
  void give_up(int peer, const std::string& reason);
  void given_up(const std::string& reason);
  void end_group(const SeatPointer& seat, int lost);
  void pass_on(const SeatPointer& seat, int from, const HeartbeatMessage& verdict);

  Wire& wire(Place place) { return wires_[static_cast<std::size_t>(place.peer)][place.rail]; }
  void part();
  void say(int peer, HeartbeatMessage message);
  void say_to_all(const HeartbeatMessage& message);
  void flush(Wire& one);

  const int rank_;
  const std::uint64_t epoch_;
  const Clock::duration interval_;

  mutable std::mutex mutex_;  // guards all down to the next blank line; never held while a group is called
  FailureDetector detector_;
  std::vector<std::vector<Wire>> wires_;  // by peer and rail
  std::vector<SeatPointer> seats_;
  bool parted_ = false;  // goodbye was said
  std::deque<Early> early_;
  std::vector<Delivery> deliveries_;
  std::uint64_t sequence_ = 0;
  Clock::time_point next_beat_ = Clock::now();
  Clock::time_point looked_ = Clock::now();  // when the thread last looked around
  Clock::duration late_{};                   // how much too late it has recently been
  Clock::time_point late_at_{};              // when that was found
  bool closing_ = false;

  std::vector<pollfd> polled_;
  std::vector<Place> places_;  // of those that are polled
  WakePipe wake_;
  std::once_flag close_once_;
  std::thread thread_;
};

}  // namespace ferrule
