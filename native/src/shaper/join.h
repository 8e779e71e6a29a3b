// What joins the ends of a cable: a direction each way between two, a switch between more. Pure: time comes from the caller.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shaper/direction.h"

namespace ferrule::shaper {

class Join {
 public:
  // Decisions of chance follow from the seed, for each end on its own.
  Join(int ends, std::uint64_t seed);

  int ends() const { return static_cast<int>(up_.size()); }
  // What happens to what `end` sends; on a switch, to what is sent to it, only the rate, queue and overhead.
  void set(int end, const Shape& shape);
  // All that is under way is lost.
  void clear();
  Counters counters(int end) const { return up_.at(static_cast<std::size_t>(end)).counters(); }

  void arrive(int end, Packet packet, Time now);
  Time next() const;

  // Move on to `now`; `emit(end, Packet)` for each packet that comes out, and where.
  template <class Emit>
  void pump(Time now, Emit&& emit) {
    if (down_.empty()) {
      const double loads[] = {up_[0].load(now), up_[1].load(now)};
      for (int end = 0; end < 2; ++end) {
        up_[end].pump(now, loads[1 - end], [&](Packet packet) { emit(1 - end, std::move(packet)); });
      }
      return;
    }
    for (int end = 0; end < ends(); ++end) {
      const double load = down_[end].load(now);
      up_[end].pump(now, load, [&](Packet packet) { forward(end, std::move(packet), now); });
    }
    for (int end = 0; end < ends(); ++end) {
      const double load = up_[end].load(now);
      down_[end].pump(now, load, [&](Packet packet) { emit(end, std::move(packet)); });
    }
  }

 private:
  void forward(int from, Packet packet, Time now);

  std::vector<Direction> up_;    // from each end; of two, to the other one
  std::vector<Direction> down_;  // from the switch to each end
  std::unordered_map<std::uint64_t, int> known_;  // address -> the end at which it is
};

}  // namespace ferrule::shaper
