#include "compute/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/rows.h"

namespace ferrule {
namespace {

constexpr std::size_t kChunk = 256;
// Below this temperature only the likeliest token is left, and dividing by it would leave the range of float32.
constexpr double kCold = 1e-5;
// A weight up to this one is that of a logit too low to come, or of none: exponentials() end there.
constexpr float kNothing = 2e-38F;

// The weights of all tokens, e to the power of what their logits are below the highest one's, by chunks: most of them
// hold nothing that a cut leaves.
class Weights {
 public:
  void weigh(std::span<const float> logits, float top, double temperature) {
    const RowTable& rows = row_kernels();
    weights_.resize(logits.size());
    tops_.clear();
    double total = 0;
    for (std::size_t first = 0; first < logits.size(); first += kChunk) {
      const std::size_t n = std::min(kChunk, logits.size() - first);
      float* const to = weights_.data() + first;
      total += rows.exponentials(logits.data() + first, n, top, static_cast<float>(1 / temperature), to);
      tops_.push_back(rows.highest(to, n));
    }
    total_ = total;
  }

  // Calls body(first, chunk) for the chunks that hold a weight of at least `least`, until it returns false.
  template <class Body>
  void each_chunk(float least, Body&& body) const {
    for (std::size_t chunk = 0; chunk < tops_.size(); ++chunk) {
      if (tops_[chunk] < least) continue;
      const std::size_t first = chunk * kChunk;
      const auto some = std::span(weights_).subspan(first, std::min(kChunk, weights_.size() - first));
      if (!body(first, some)) return;
    }
  }

  // Of those of at least `least`.
  double mass(float least) const {
    if (least <= 0) return total_;
    double mass = 0;
    each_chunk(least, [&](std::size_t, std::span<const float> chunk) {
      for (const float weight : chunk) mass += weight >= least ? weight : 0;
      return true;
    });
    return mass;
  }

  // The weight that `count` of them reach.
  float nth(std::size_t count) {
    if (count >= weights_.size()) return 0;
    some_.clear();
    std::size_t chunk = 0;
    for (std::size_t first = 0; first < weights_.size(); first += kChunk, ++chunk) {
      if (some_.size() == count && tops_[chunk] <= some_.front()) continue;
      for (std::size_t i = first; i < std::min(first + kChunk, weights_.size()); ++i) {
        if (some_.size() == count) {
          if (weights_[i] <= some_.front()) continue;
          std::ranges::pop_heap(some_, std::greater());
          some_.pop_back();
        }
        some_.push_back(weights_[i]);
        std::ranges::push_heap(some_, std::greater());
      }
    }
    return some_.front();
  }

  // The highest weight such that those that reach it have at least the part `part` of the mass of those of at least
  // `least`.
  float nucleus(float least, double part) {
    const double whole = mass(least);
    // All lower ones together have less than what may go.
    least = std::max(least, static_cast<float>(whole * (1 - part) / static_cast<double>(weights_.size())));
    some_.clear();
    each_chunk(least, [&](std::size_t, std::span<const float> chunk) {
      for (const float weight : chunk) {
        if (weight >= least) some_.push_back(weight);
      }
      return true;
    });
    double wanted = whole * part;
    std::span<float> left(some_);
    float reached = 0;
    while (!left.empty()) {
      const float pivot = left[left.size() / 2];
      const auto above = std::partition(left.begin(), left.end(), [&](float weight) { return weight > pivot; });
      const auto below = std::partition(above, left.end(), [&](float weight) { return weight == pivot; });
      const double more = std::accumulate(left.begin(), above, 0.0);
      if (more >= wanted && above != left.begin()) {
        left = {left.begin(), above};
        continue;
      }
      reached = pivot;
      const double these = more + static_cast<double>(pivot) * static_cast<double>(below - above);
      if (these >= wanted) break;
      wanted -= these;
      left = {below, left.end()};
    }
    return reached;
  }

 private:
  std::vector<float> weights_;
  std::vector<float> tops_;  // of each chunk
  std::vector<float> some_;
  double total_ = 0;
};

std::int64_t first_of(std::span<const float> logits, float value) {
  return std::ranges::find(logits, value) - logits.begin();
}

}  // namespace

std::int64_t sample(std::span<const float> logits, const Sampling& how, double random) {
  const float top = row_kernels().highest(logits.data(), logits.size());
  if (std::isinf(top) && top < 0) {  // nothing is above the start of the search
    const auto found = std::ranges::find_if(logits, [](float logit) { return !std::isnan(logit); });
    return found == logits.end() ? kNoToken : found - logits.begin();
  }
  if (std::isinf(top) || how.temperature < kCold) return first_of(logits, top);

  static thread_local Weights weights;
  weights.weigh(logits, top, how.temperature);
  float least = how.top_k > 0 ? weights.nth(static_cast<std::size_t>(how.top_k)) : 0;
  if (how.top_p < 1) least = weights.nucleus(least, how.top_p);
  least = std::max(least, static_cast<float>(how.min_p));  // the likeliest one's weight is 1

  double left = random * weights.mass(least);
  std::int64_t chosen = kNoToken;
  weights.each_chunk(least, [&](std::size_t first, std::span<const float> chunk) {
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      if (chunk[i] < least || chunk[i] <= kNothing) continue;
      chosen = static_cast<std::int64_t>(first + i);  // the last one, if rounding leaves something
      left -= chunk[i];
      if (left < 0) return false;
    }
    return true;
  });
  return chosen;
}

}  // namespace ferrule
