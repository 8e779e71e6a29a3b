// One direction of an emulated USB4 cable: random faults, rate and delay for the frames of all paths on it. Pure: time
// comes from the caller, and frames go out through a function of the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "emulation/shaper/random.h"
#include "emulation/usb4/registers.h"

namespace ferrule::usb4 {

using Time = std::int64_t;  // nanoseconds
constexpr Time kNever = INT64_MAX;

// Destination of a frame: a ring of a controller, and the HopID that it has on the cable.
struct Target {
  unsigned controller = 0;
  unsigned ring = 0;
  unsigned hop = 0;
};

struct Frame {
  std::span<const std::byte> data;
  std::uint8_t eof = 0;
  std::uint8_t sof = 0;
  bool corrupt = false;
};

struct WireShape {
  double rate = 0;  // bits per second; 0: no limit
  Time delay = 0;
  // The chance of each frame.
  double drop = 0;
  double corrupt = 0;
  double duplicate = 0;
  double reorder = 0;
  bool mute = false;  // everything is lost

  bool operator==(const WireShape&) const = default;
};

struct WireCounters {
  std::uint64_t frames = 0;  // that were sent into it
  std::uint64_t bytes = 0;
  std::uint64_t delivered = 0;
  std::uint64_t dropped = 0;  // at random
  std::uint64_t corrupted = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t muted = 0;  // while it was mute
  std::uint64_t cut = 0;    // under way when the link went down
};

// Fate of a frame, for a trace.
enum class Fate { delivered, dropped };

class Wire {
 public:
  using Deliver = std::function<void(const Target&, const Frame&)>;
  using Watch = std::function<void(const Target&, const Frame&, Fate)>;

  Wire(std::uint64_t seed, Deliver deliver, Watch watch)
      : random_(seed), deliver_(std::move(deliver)), watch_(std::move(watch)) {}

  void shape(const WireShape& shape) { shape_ = shape; }
  const WireCounters& counters() const { return counters_; }
  // Whether it takes another frame; where not, its sender waits.
  bool ready(Time now) const;
  void send(const Target& target, const Frame& frame, Time now);
  // Let out what has arrived.
  void pump(Time now);
  // Time at which `pump` has something to do again.
  Time next() const;
  // The link goes down: what is under way is lost.
  void clear();

  // Frames on their way to this ring.
  unsigned under_way(const Target& target) const;

 private:
  struct Flying {
    Time due;
    Target target;
    std::vector<std::byte> data;
    std::uint8_t eof;
    std::uint8_t sof;
    bool corrupt;
  };

  void out(const Target& target, const Frame& frame);
  void fly(Flying flying);
  static std::size_t place(const Target& target) { return target.controller * kMostHops + target.ring; }

  shaper::Random random_;
  Deliver deliver_;
  Watch watch_;
  WireShape shape_;
  std::deque<Flying> flying_;        // in order of arrival
  std::optional<Flying> held_;       // goes out behind the next one
  std::vector<unsigned> under_way_;  // by `place`
  Time free_ = 0;                    // when the last frame's sending ends
  WireCounters counters_;
};

}  // namespace ferrule::usb4
