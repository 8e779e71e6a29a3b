// The shaper: threads that carry packets between sockets with the delay, rate and faults of emulated cables. Linux
// only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "emulation/shaper/join.h"
#include "emulation/shaper/pacer.h"
#include "emulation/shaper/spare.h"

namespace ferrule::shaper {

// Counters of what became of an end's packets.
struct EndCounters {
  Counters frames;
  std::uint64_t missed = 0;  // packets that came quicker than they were taken, and are in no other number
  std::uint64_t unsent = 0;  // packets for this end that its socket did not take
};

// One thread and the cables that it serves.
class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // All of these wait until the thread has done it. Those with `cable` throw when there is none of that number.
  void add(int cable, std::vector<int> fds, std::uint64_t seed);
  void remove(int cable);
  void set(int cable, int end, const Shape& shape);
  void clear(int cable);
  EndCounters counters(int cable, int end);

 private:
  struct Cable {
    Join join;
    std::vector<int> fds;
    std::vector<std::uint64_t> missed;
    std::vector<std::uint64_t> unsent;
  };

  void call(std::function<void()> order);
  // Run the orders of other threads; false when the worker is to end.
  bool run_orders();
  Cable& find(int cable, int end = 0);
  void run();
  // Sleep or poll, and take in what has arrived.
  void wait();
  void receive(std::uint64_t where);
  void pump(Cable& cable);
  void ring();

  int epoll_ = -1;
  int bell_ = -1;
  std::mutex mutex_;  // guards orders_ and closing_
  std::vector<std::packaged_task<void()>> orders_;
  bool closing_ = false;

  // The thread's own.
  std::map<int, Cable> cables_;
  bool rung_ = false;  // the bell rang, and the orders have not been run yet
  Pacer pacer_;
  Spare spare_processor_;
  Time moved_ = 0;  // when a packet came or went last
  std::unique_ptr<std::byte[]> spare_;
  std::thread thread_;
};

// Cables shared out over threads.
class Shaper {
 public:
  // As many threads as leave the hosts half of the processors.
  explicit Shaper(int threads = 0);

  // Takes the descriptors over, also when it throws: packet sockets with PACKET_VNET_HDR, or
  // other sockets that give and take one packet at a time in that form.
  int join(std::vector<int> fds, std::uint64_t seed);
  // The one that serves a cable, for all else.
  Worker& worker(int cable) { return *workers_[static_cast<std::size_t>(cable) % workers_.size()]; }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<int> cables_{0};
};

}  // namespace ferrule::shaper
