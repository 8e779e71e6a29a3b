// Two queue pairs joined by a wire in this process, which delivers when it is told to and loses what it is told to.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include "transports/verbs/queue_pair.h"
#include "transports/verbs/verbs_pipe.h"

namespace ferrule {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// One direction.
struct FakeWire {
  struct Post {
    std::vector<std::byte> bytes;
    bool reported;
  };
  std::deque<Post> under_way;
  std::deque<std::uint32_t> receives;
  std::deque<Arrival> arrived;
  std::uint64_t completed = 0;  // what the sender has been told of
  std::uint64_t left = 0;
  std::uint64_t lost = 0;
  Bytes target;  // the receiver's slots
  std::size_t slot_bytes = 0;
  int bell[2] = {-1, -1};
  bool armed = false;
};

class FakeQueuePair final : public QueuePair {
 public:
  FakeQueuePair(FakeWire& out, FakeWire& in, std::size_t memory, std::uint32_t slot_bytes, std::size_t depth,
                bool reliable)
      : out_(out), in_(in), memory_(memory), depth_(depth), reliable_(reliable) {
    in_.target = memory_;
    in_.slot_bytes = slot_bytes;
    require(::pipe(in_.bell) == 0, "no pipe");
  }
  ~FakeQueuePair() override {
    ::close(in_.bell[0]);
    ::close(in_.bell[1]);
  }

  Bytes memory() override { return memory_; }
  bool has_room() const override { return posted_ - out_.completed < depth_; }
  void send(ConstBytes frame) override {
    require(has_room(), "a send into a full queue");
    require(frame.data() >= memory_.data() && frame.data() + frame.size() <= memory_.data() + memory_.size(),
            "a send from memory that is not registered");
    ++posted_;
    // Like the hardware, which reads memory only when a frame leaves, but reports only some of them.
    out_.under_way.push_back({{frame.begin(), frame.end()}, report_ || posted_ % 4 == 0});
    report_ = false;
  }
  // It has no devices' memory: verbs_device_memory.cpp has queue pairs that do.
  void send_with(ConstBytes, const DeviceBytes&) override { require(false, "a device's memory"); }
  void write(const DeviceBytes&, std::uint64_t, std::uint32_t) override { require(false, "a device's memory"); }
  std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory&) override { throw std::runtime_error("none here"); }
  void stop() override { fault_ = "stopped"; }
  void receive(std::span<const std::uint32_t> slots) override {
    in_.receives.insert(in_.receives.end(), slots.begin(), slots.end());
  }
  std::size_t poll(std::span<Arrival> into) override {
    std::size_t n = 0;
    for (; n != into.size() && !in_.arrived.empty(); ++n) {
      into[n] = in_.arrived.front();
      in_.arrived.pop_front();
    }
    return n;
  }
  std::size_t depth() const override { return depth_; }
  std::uint64_t sent() const override { return posted_; }
  std::uint64_t completed() const override { return out_.completed; }
  void report() override { report_ = true; }
  bool reliable() const override { return reliable_; }
  const std::string& fault() const override { return fault_; }
  int event_fd() const override { return in_.bell[0]; }
  void arm() override { in_.armed = true; }
  void take_events() override {
    char byte;
    pollfd ready{in_.bell[0], POLLIN, 0};
    while (::poll(&ready, 1, 0) == 1) require(::read(in_.bell[0], &byte, 1) == 1, "no bell");
  }

  void break_with(const char* fault) { fault_ = fault; }

  // The wire's work: one frame moves, or is lost. False when there is none.
  static bool deliver(FakeWire& wire, bool lose, bool reliable) {
    if (wire.under_way.empty()) return false;
    const FakeWire::Post post = std::move(wire.under_way.front());
    wire.under_way.pop_front();
    ++wire.left;
    if (post.reported) wire.completed = wire.left;
    if (lose || wire.receives.empty()) {
      require(!reliable, "no receive was posted for a frame");
      ++wire.lost;
      return true;
    }
    const std::uint32_t slot = wire.receives.front();
    wire.receives.pop_front();
    std::ranges::copy(post.bytes, wire.target.begin() + static_cast<std::ptrdiff_t>(slot * wire.slot_bytes));
    wire.arrived.push_back({slot, static_cast<std::uint32_t>(post.bytes.size())});
    if (wire.armed) {
      wire.armed = false;
      require(::write(wire.bell[1], "!", 1) == 1, "no bell");
    }
    return true;
  }

 private:
  FakeWire& out_;
  FakeWire& in_;
  std::vector<std::byte> memory_;
  const std::size_t depth_;
  const bool reliable_;
  std::uint64_t posted_ = 0;
  bool report_ = false;
  std::string fault_;
};

}  // namespace ferrule
