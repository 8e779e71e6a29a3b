#include "step/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace ferrule {
namespace {

void softmax(float* x, std::size_t n) {
  const float top = *std::max_element(x, x + n);
  float total = 0;
  for (std::size_t i = 0; i < n; ++i) total += x[i] = std::exp(x[i] - top);
  for (std::size_t i = 0; i < n; ++i) x[i] /= total;
}

// The places of the `n` largest, in falling order; the earlier of two that are equal.
std::vector<std::size_t> largest(const std::vector<float>& x, std::size_t n) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto before = [&](std::size_t a, std::size_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(), before);
  order.resize(n);
  return order;
}

}  // namespace

void Experts::choose(const float* logits_of, Choice* best) {
  scores_.assign(logits_of, logits_of + total);
  if (scoring == Scoring::softmax) softmax(scores_.data(), total);
  if (scoring == Scoring::sigmoid) {
    for (float& each : scores_) each = 1.0F / (1.0F + std::exp(-each));
  }
  std::vector<float> by = scores_;
  if (!choice_bias.empty()) {
    for (std::size_t i = 0; i < total; ++i) by[i] += choice_bias[i];
  }
  if (groups > 1) {
    const std::size_t size = total / groups;
    std::vector<float> of_group(groups);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::vector<float> members(by.begin() + static_cast<std::ptrdiff_t>(g * size),
                                       by.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      for (const std::size_t each : largest(members, std::min(group_best, size))) of_group[g] += members[each];
    }
    const std::vector<std::size_t> kept = largest(of_group, chosen_groups);
    for (std::size_t g = 0; g < groups; ++g) {
      if (std::ranges::find(kept, g) != kept.end()) continue;
      std::fill_n(by.begin() + static_cast<std::ptrdiff_t>(g * size), size, -std::numeric_limits<float>::infinity());
    }
  }
  float sum = 0;
  std::vector<float> weights;
  const std::vector<std::size_t> found = largest(by, chosen);
  for (const std::size_t each : found) {
    weights.push_back(scores_[each]);
    sum += scores_[each];
  }
  if (scoring == Scoring::softmax_of_chosen) {
    softmax(weights.data(), weights.size());
  } else if (normalize) {
    for (float& each : weights) each /= sum + 1e-20F;
  }
  for (std::size_t i = 0; i < chosen; ++i) best[i] = {static_cast<std::uint32_t>(found[i]), weights[i] * factor};
}

void Experts::Computed::clear() {
  numbers.clear();
  from.clear();
  to.clear();
}

void Experts::Computed::add(std::size_t number, const float* read, float* written) {
  numbers.push_back(number);
  from.push_back(read);
  to.push_back(written);
}

void Experts::run(Step& step) {
  choices_.resize(step.count * chosen);
  for (std::size_t i = 0; i < step.count; ++i) choose(step.at(logits).row(i), choices_.data() + i * chosen);
  if (sharing != Sharing::masked) return exchange(step);
  const Rows out = step.at(to);
  std::memset(out.data, 0, step.count * out.width * sizeof(float));
  computed_.clear();
  for (std::size_t i = 0; i < step.count; ++i) computed_.add(i, at(step, x, i), out.row(i));
  compute(step);
}

// Add what the experts that are here make of the rows.
void Experts::compute(Step& step) {
  std::vector<std::vector<std::size_t>> places(experts.size());
  std::vector<std::vector<float>> weights(experts.size());
  for (std::size_t place = 0; place < computed_.numbers.size(); ++place) {
    for (std::size_t i = 0; i < chosen; ++i) {
      const Choice& each = choices_[computed_.numbers[place] * chosen + i];
      if (each.expert < first || each.expert >= first + experts.size()) continue;
      places[each.expert - first].push_back(place);
      weights[each.expert - first].push_back(each.weight);
    }
  }
  if (pool != nullptr) {  // read what is missing while computing with what is there
    needed_.clear();
    for (std::size_t e = 0; e < experts.size(); ++e) {
      if (!places[e].empty()) needed_.push_back(parts[e]);
    }
    pool->expect(needed_);
  }
  for (std::size_t e = 0; e < experts.size(); ++e) {
    if (places[e].empty()) continue;
    if (pool != nullptr) pool->enter(parts[e], step.timeout_seconds);
    run_expert(step, experts[e], places[e], weights[e]);
  }
  if (pool != nullptr) pool->leave();
}

void Experts::run_expert(Step& step, const Expert& expert, const std::vector<std::size_t>& places,
                         const std::vector<float>& weights) {
  Machine& machine = step.machine;
  const std::size_t count = places.size();
  const std::size_t width = step.at(x.reg).width - x.offset;
  const std::size_t both = expert.gate_up.layout.blocks() * kBlockRows;
  const std::size_t results = expert.down.layout.blocks() * kBlockRows;
  given_.resize(count * width);
  gate_up_.resize(count * both);
  gated_.resize(count * inner);
  result_.resize(count * results);
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(given_.data() + i * width, computed_.from[places[i]], width * sizeof(float));
  }
  const Factor gate_up{expert.gate_up, gate_up_.data(), both};
  machine.multiplier.multiply({&gate_up, 1}, given_.data(), count, width, machine.precision);
  for (std::size_t i = 0; i < count; ++i) {
    float* const row = gate_up_.data() + i * both;
    if (!expert.gate_up_bias.empty()) {
      machine.kernels.add(row, expert.gate_up_bias.data(), expert.gate_up_bias.size(), 1);
    }
    const float* gate = row;
    if (interleaved) {
      apart_.resize(2 * inner);
      for (std::size_t k = 0; k < inner; ++k) {
        apart_[k] = row[2 * k];
        apart_[inner + k] = row[2 * k + 1];
      }
      gate = apart_.data();
    }
    machine.kernels.gate(kind, gate, gate + inner, inner, gated_.data() + i * inner);
  }
  const Factor down{expert.down, result_.data(), results};
  machine.multiplier.multiply({&down, 1}, gated_.data(), count, inner, machine.precision);
  for (std::size_t i = 0; i < count; ++i) {
    float* const row = result_.data() + i * results;
    if (!expert.down_bias.empty()) machine.kernels.add(row, expert.down_bias.data(), expert.down_bias.size(), 1);
    machine.kernels.add(computed_.to[places[i]], row, expert.down.layout.rows, weights[i]);
  }
}

}  // namespace ferrule
