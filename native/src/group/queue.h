// Operation queue of a stream: the caller runs its operation itself when nothing else is under way, else a thread does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transports/message.h"

namespace ferrule {

// An operation that was started and goes on by itself.
class Work {
 public:
  // OK, the failure, or Status::pending when it is not done within `timeout` seconds.
  Status wait(double timeout);
  // Call `done` when it is done, in the thread that ends it; at once if it is already.
  void then(std::function<void()> done);
  void finish(Status status);
  // The rank from which a receive from any rank got its message; -1 until then, and for all else.
  int source() const { return source_.load(std::memory_order_acquire); }
  void came_from(int rank) { source_.store(rank, std::memory_order_release); }

 private:
  std::atomic<int> source_{-1};
  std::mutex mutex_;
  std::condition_variable changed_;
  Status status_ = Status::pending;
  std::vector<std::function<void()>> then_;
};

// Operations that one caller asked for together, and when they must be done.
struct Batch {
  const Operation* operations;
  std::size_t count;
  Clock::time_point start;
  Clock::time_point deadline;

  Batch(const Operation* operations_, std::size_t count_, double timeout);
};

// A batch without a waiting caller: it owns its buffers.
struct Job {
  std::vector<Operation> operations;
  std::vector<std::size_t> counts;  // what the operations' send_counts and recv_counts point to
  Clock::time_point start;
  Clock::time_point deadline;
  std::shared_ptr<Work> work;

  Job() = default;
  // `ranks`: how many send_counts and recv_counts there are, where there are any.
  Job(const Batch& batch, std::size_t ranks);
  Batch batch() const;
};

class Queue {
 public:
  // `serve` runs what is queued; the stream's thread calls it while it holds the stream.
  explicit Queue(std::function<void()> serve) : serve_(std::move(serve)) {}
  ~Queue() { stop(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // The stream belongs to one thread at a time.
  enum class Entry {
    entered,
    occupied,  // another caller is inside
    pending,   // its own thread has work to do, or had when this was called
  };
  Entry enter() { return enter_as(Holder::operation); }
  bool try_enter() { return enter() == Entry::entered; }
  void leave();
  // For a moment of housekeeping between operations: another thread that enters waits that long.
  bool try_maintain();

  // Whether jobs are queued or being served.
  bool pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  void push(Job job);
  // The next job, or nothing. The caller calls ended() when its work is finished.
  bool has_next() const { return queued_.load(std::memory_order_acquire) != 0; }
  bool pop(Job& into);
  void ended() { pending_.fetch_sub(1, std::memory_order_acq_rel); }
  // Wait until nothing is pending.
  void drain();
  // End the thread. What is still queued stays undone.
  void stop();

 private:
  void run();

  enum class Holder { none, operation, thread, maintenance };
  Entry enter_as(Holder wanted);

  const std::function<void()> serve_;
  std::atomic<Holder> holder_{Holder::none};
  std::atomic<std::uint64_t> pending_{0};
  std::atomic<std::uint64_t> queued_{0};
  std::mutex mutex_;  // guards the three below
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ferrule
