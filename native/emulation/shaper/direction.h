// One direction of an emulated cable. Pure: time comes from the caller.
//
// A packet waits for its turn in a queue of bounded bytes, takes its bytes' time to be sent, is on its way for the
// cable's delay, and comes out at the other end. Losses and errors are drawn when its sending begins, so that
// a lost packet has used the wire as it would have on a real one.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "emulation/shaper/packet.h"
#include "emulation/shaper/random.h"

namespace ferrule::shaper {

enum class Flow {
  moves,
  stalled,  // nothing moves, nothing is lost but what the queue has no room for
  mute,     // all that this end sends is lost
  dark,     // and, on a switch, all that is sent to it
};

struct Shape {
  double rate = 0;  // bits per second; 0: no limit
  Time delay = 0;
  Time jitter = 0;  // a packet's delay is up to so much shorter or longer; packets stay in order
  // Probabilities, for each frame on the wire.
  double loss = 0;
  double corrupt = 0;
  double duplicate = 0;
  double reorder = 0;
  double collapse = 0;      // under load both ways, what both directions together get, in parts of `rate`; 0: all, each
  std::uint64_t queue = 0;  // bytes that may wait for their turn; 0: no limit
  std::uint32_t overhead = 0;  // bytes on the wire for each frame beside its own
  Flow flow = Flow::moves;
};

struct Counters {
  std::uint64_t frames = 0;  // that came in
  std::uint64_t bytes = 0;
  std::uint64_t delivered_frames = 0;
  std::uint64_t delivered_bytes = 0;
  std::uint64_t overflowed = 0;  // frames lost because the queue was full
  std::uint64_t lost = 0;        // at random
  std::uint64_t cut = 0;         // because nothing passed at the time
  std::uint64_t corrupted = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t queued_bytes = 0;  // that wait now
  Time latest = 0;                 // how late a packet came out at most, after the moment at which it was due
};

class Direction {
 public:
  explicit Direction(std::uint64_t seed) : random_(seed) {}
  Direction(Direction&&) = default;

  const Shape& shape() const { return shape_; }
  // Acts on all that has not begun to be sent; what is under way arrives as it would have, unless all flow ends.
  void set(const Shape& shape);
  // Everything that waits or is under way is lost.
  void clear();
  void arrive(Packet packet, Time now);
  // Time at which `pump` has something to do again, if nothing arrives.
  Time next() const;
  // The part of the time in which it was sending lately, from 0 to 1.
  double load(Time now) const;

  // Time at which the sending of the next packet begins; `kNever` if none waits.
  Time turn() const {
    return waiting_.empty() || shape_.flow == Flow::stalled ? kNever : std::max(free_, waiting_.front().arrived);
  }
  // Send it. `other_load`: that of the other direction at that time.
  void send_next(double other_load);
  // `take(Packet)` for each packet that has come out by `now`.
  template <class Take>
  void deliver(Time now, Take&& take) {
    if (shape_.flow == Flow::stalled) return;
    while (!flying_.empty() && flying_.front().due <= now) {
      Flying out = std::move(flying_.front());
      flying_.pop_front();
      counters_.delivered_frames += out.packet.extent().frames;
      counters_.delivered_bytes += out.packet.extent().bytes;
      counters_.latest = std::max(counters_.latest, now - out.due);
      take(std::move(out.packet));
    }
  }

  Counters counters() const {
    Counters now = counters_;
    now.queued_bytes = queued_;
    return now;
  }

 private:
  struct Flying {
    Time due;
    Packet packet;
  };

  bool silent() const { return shape_.flow == Flow::mute || shape_.flow == Flow::dark; }
  void fly(Packet packet, Time due);
  // A random decision for a packet that stands for many frames: true with the chance that it hits at least one of them.
  bool hits(const Packet& packet, double probability);
  void damage(Packet& packet);
  std::uint64_t wire_bytes(const Packet& packet) const {
    return packet.extent().bytes + std::uint64_t{packet.extent().frames} * shape_.overhead;
  }

  Shape shape_;
  Random random_;
  std::deque<Packet> waiting_;
  std::uint64_t queued_ = 0;
  std::deque<Flying> flying_;  // by due
  Time free_ = 0;              // when the packet being sent will have been sent
  double rest_ = 0;            // nanoseconds that `free_` lacks
  Time last_due_ = 0;
  double load_ = 0;  // when the last packet had been sent
  Counters counters_;
};

}  // namespace ferrule::shaper
