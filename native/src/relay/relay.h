// Relay: forwards bytes between ranks that share no link, on one thread per process.
//
// One thread per process forwards between pairs of connected sockets, both ways, and understands nothing of it. A
// side that is slow makes the other one wait; memory is bounded.
#pragma once

#include <poll.h>

#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "relay/relay_buffer.h"
#include "transports/message.h"
#include "wait/wake_pipe.h"

namespace ferrule {

class Relay {
 public:
  Relay() = default;
  ~Relay() { close(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Forward until neither side has anything more to say. What a side said before it ended, or broke, still arrives
  // before its end does. Takes the descriptors over, also when it throws.
  void add(int a, int b);
  // Give those that are still talking a little time to end, then cut them off.
  void close();

 private:
  // From side `source` to the other one.
  struct Stream {
    std::unique_ptr<RelayBuffer>
        held;           // from the first bytes on: most streams between ranks that share no link stay idle
    bool ready = true;  // there may be something to move
    bool done = false;  // no more will come, or no more can be given

    bool empty() const { return held == nullptr || held->empty(); }
  };
  struct Pair {
    int sides[2];
    Stream streams[2];  // by source

    bool over() const { return streams[0].done && streams[1].done; }
    void pump(int source);
  };

  void run();
  void sleep(Clock::time_point until);

  std::mutex mutex_;  // guards the three below
  std::list<Pair> arriving_;
  bool closing_ = false;
  std::thread thread_;

  std::list<Pair> talking_;
  std::vector<pollfd> polled_;
  std::vector<Stream*> waiting_;  // for the place in polled_ with the same number, less one
  WakePipe wake_;
};

}  // namespace ferrule
