// Concurrent sends to and receives from any number of peers, over any channels.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "transports/channel.h"
#include "wait/wait.h"

namespace ferrule {

// Throws the Failure that follows when what a peer sent is not what this rank expects. `behind`: bytes that were read
// together with the header.
void check_header(Channel& channel, const MessageHeader& expected, const MessageHeader& got, ConstBytes behind = {});

// One message to a peer: header, payload, and for two-phase collectives a second part that becomes ready by and by.
struct Outgoing {
  Channel* channel = nullptr;
  MessageHeader header;
  ConstBytes first;
  ConstBytes second;
  std::size_t second_ready = 0;
  // Instead of those two: in the memory of a device. Where the peer granted a place it is written there, and the header
  // follows by itself.
  DeviceBytes device;
  std::optional<Grant> place;
  std::size_t placed = 0;
  std::size_t sent = 0;  // of header, first and second together, or header and device

  std::size_t total() const { return sizeof header + first.size() + second.size() + (place ? 0 : device.size); }
  bool done() const { return sent == total(); }
  // Done, and the payload may change: no rail can need it any more.
  bool settled() const { return done() && !channel->holds_callers_memory(); }
  bool can_send() const { return sent < sizeof header + first.size() + second_ready + (place ? 0 : device.size); }
  bool pump();
  // That many bytes are sent already.
  void begin_at(std::size_t bytes);

 private:
  bool pump_device();
};

// One message from a peer. The header must be the expected one before any payload is taken. The first part goes
// to a window, a ring buffer of which `consumed` says how far it may be overwritten; the second to its place.
struct Incoming {
  Channel* channel = nullptr;
  MessageHeader expected;
  std::size_t first_size = 0;
  Bytes window;
  // Room for header and first part in one piece, of which the window is the rest, where the whole message is small.
  // One read brings both, without a copy.
  Bytes whole;
  Bytes second;
  bool granted = false;  // a place for all of `second`, which stays unused if the payload is written there
  std::size_t consumed = 0;
  std::size_t got = 0;  // of header, first and second together
  MessageHeader header;

  std::size_t total() const { return sizeof header + first_size + second.size(); }
  bool done() const { return got == total(); }
  bool placed() const { return header.call.variant == kPlaced && granted; }
  std::size_t first_got() const { return got < sizeof header ? 0 : std::min(got - sizeof header, first_size); }
  bool can_receive() const;
  bool pump();
  // That many bytes are in `whole` already.
  void begin_at(std::size_t bytes);

 private:
  bool pump_whole();
  Bytes target();
};

class LocalCollectives;

constexpr std::size_t kBulkBytes = 1 << 20;

class Exchange {
 public:
  // `local`: where collectives go past the channels, or nullptr.
  Exchange(Waiter& waiter, std::size_t size, LocalCollectives* local)
      : waiter_(waiter), local_(local), outgoing_(size), incoming_(size) {}

  // Start afresh; every rank without a channel takes no part.
  void clear();
  Outgoing& to(Channel* channel, const MessageHeader& header);
  Incoming& from(Channel* channel, const MessageHeader& expected);

  // Run to the end. `advance` is called after every step that moved something and may make more ready.
  template <class Advance>
  void run(Advance&& advance) {
    const Haste haste = bytes() < kBulkBytes ? Haste::latency : Haste::bulk;
    waiter_.until(
        [&] {
          bool moved = pump();
          if (moved && advance()) moved = true;
          if (finished()) return Progress::done;
          return moved ? Progress::moved : Progress::idle;
        },
        [this](int rank) { return wanted(rank); }, haste);
  }
  void run() {
    run([] { return false; });
  }

 private:
  std::size_t bytes() const;
  bool pump();
  bool finished() const;
  Wanted wanted(int rank);

  Waiter& waiter_;
  LocalCollectives* const local_;
  std::vector<Outgoing> outgoing_;  // by rank
  std::vector<Incoming> incoming_;
};

}  // namespace ferrule
