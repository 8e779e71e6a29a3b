// Choose a token from logits: the likeliest one, or a random one of those that temperature and cuts leave.
#pragma once

#include <cstdint>
#include <span>

namespace ferrule {

// Cuts are applied in this order, each to what the last one left.
struct Sampling {
  double temperature = 1;  // 0: the likeliest
  std::int64_t top_k = 0;  // keep so many of the likeliest, and those that are as likely; 0: all
  double top_p = 1;        // keep the likeliest that together have this probability
  double min_p = 0;        // keep what has this part of the likeliest one's probability
};

constexpr std::int64_t kNoToken = -1;

// `random`: of [0, 1). The tokens that are left lie side by side in the order of their numbers, each as wide as it is
// likely, and the one at that place is chosen: a little noise in the logits hardly ever changes it. Logits that are no
// numbers are never chosen; kNoToken where all are.
std::int64_t sample(std::span<const float> logits, const Sampling& how, double random);

}  // namespace ferrule
