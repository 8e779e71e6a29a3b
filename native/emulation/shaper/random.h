// Random numbers that are the same for the same seed on any machine: SplitMix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>

namespace ferrule::shaper {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // At least 0, less than 1.
  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Draws no number for a probability of 0 or 1: a cable that only delays uses none.
  bool happens(double probability) { return probability > 0 && (probability >= 1 || fraction() < probability); }

 private:
  std::uint64_t state_;
};

}  // namespace ferrule::shaper
