// What the tests of kernels share: the instruction set of this process, random numbers, and results that are near.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "testing.h"

namespace testing {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

// By the name in the first argument, or the best one; ends the test where this machine or build has no such set. To be
// called first.
inline void choose_instructions(int count, char** arguments) {
  if (count < 2) return;
  ::setenv("FERRULE_KERNELS", arguments[1], 1);
  if (std::strcmp(ferrule::name_of(ferrule::isa()), arguments[1]) == 0) return;
  std::printf("this machine has %s\n", ferrule::name_of(ferrule::isa()));
  std::exit(77);
}

// Whether products of bfloat16 round what they multiply to bfloat16.
inline bool bf16_pairs() { return ferrule::isa() == ferrule::Isa::avx512bf16 || ferrule::isa() == ferrule::Isa::i8mm; }

inline std::mt19937& random() {
  static std::mt19937 engine(4711);
  return engine;
}
inline std::uint32_t below(std::uint32_t end) { return random()() % end; }

inline std::vector<float> normal(std::size_t count) {
  std::normal_distribution<float> distribution;
  std::vector<float> numbers(count);
  for (float& each : numbers) each = distribution(random());
  return numbers;
}

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
// To nearest, ties to even.
inline float to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  return of_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

inline void near(float found, double wanted, double most, const std::string& what) {
  if (std::abs(found - wanted) <= most) return;
  char text[256];
  std::snprintf(text, sizeof text, "%s: %s: %.9g instead of %.9g, more than %.3g apart", name_of(ferrule::isa()),
                what.c_str(), found, wanted, most);
  fail(__FILE__, __LINE__, text);
}

}  // namespace testing
