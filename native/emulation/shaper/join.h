// An emulated cable between two ends, or a switch between more. Pure: time comes from the caller.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulation/shaper/direction.h"

namespace ferrule::shaper {

class Join {
 public:
  // Random decisions follow from the seed, for each end on its own.
  Join(int ends, std::uint64_t seed);

  int ends() const { return static_cast<int>(up_.size()); }
  // Shapes what `end` sends; on a switch, also what is sent to it, by the rate, queue and overhead only.
  void set(int end, const Shape& shape);
  // Every packet under way is lost.
  void clear();
  Counters counters(int end) const { return up_.at(static_cast<std::size_t>(end)).counters(); }

  void arrive(int end, Packet packet, Time now);
  Time next() const;

  // Move on to `now`; `emit(end, Packet)` for each packet that comes out, and where.
  template <class Emit>
  void pump(Time now, Emit&& emit) {
    if (down_.empty()) {
      advance(up_[0], up_[1], now);
      for (int end = 0; end < 2; ++end) {
        up_[end].deliver(now, [&](Packet packet) { emit(1 - end, std::move(packet)); });
      }
      return;
    }
    for (int end = 0; end < ends(); ++end) advance(up_[end], down_[end], now);
    for (int end = 0; end < ends(); ++end) {
      up_[end].deliver(now, [&](Packet packet) { forward(end, std::move(packet), now); });
    }
    for (int end = 0; end < ends(); ++end) {
      advance(up_[end], down_[end], now);
      down_[end].deliver(now, [&](Packet packet) { emit(end, std::move(packet)); });
    }
  }

 private:
  // Send what both directions of one cable have sent by `now`, in the order of time: each must see how busy the other
  // was then, also when the thread wakes late and finds a backlog in both.
  static void advance(Direction& one, Direction& other, Time now);
  void forward(int from, Packet packet, Time now);

  std::vector<Direction> up_;                     // from each end; of two, to the other one
  std::vector<Direction> down_;                   // from the switch to each end
  std::unordered_map<std::uint64_t, int> known_;  // address -> the end at which it is
};

}  // namespace ferrule::shaper
