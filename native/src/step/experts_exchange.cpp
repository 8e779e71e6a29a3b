// Experts that ranks have whole: rows on their way to them, and results on their way back.
#include <algorithm>
#include <cstring>

#include "assertions.h"
#include "step/experts.h"
#include "step/tokens.h"

namespace ferrule {

bool Experts::needs(std::size_t row, std::size_t rank) const {
  const Choice* const of = choices_.data() + row * chosen;
  return std::any_of(of, of + chosen,
                     [&](const Choice& each) { return each.expert >= bounds[rank] && each.expert < bounds[rank + 1]; });
}

void Experts::exchange(Step& step) {
  FERRULE_ASSERT(step.apart == (sharing == Sharing::dispatched));
  const std::size_t width = step.at(x.reg).width - x.offset;
  if (sharing == Sharing::dispatched) share_choices(step);
  const auto own = static_cast<std::size_t>(step.machine.group_rank);
  std::size_t computed = 0;
  for (std::size_t row = 0; row < step.positions.size(); ++row) computed += needs(row, own) ? 1 : 0;
  sums_.assign(computed * width, 0);
  computed_.clear();
  if (sharing == Sharing::dispatched) {
    dispatch(step, width);
  } else {
    for (std::size_t row = 0; row < step.positions.size(); ++row) {
      if (needs(row, own)) computed_.add(row, at(step, x, row), sums_.data() + computed_.numbers.size() * width);
    }
  }
  compute(step);
  combine(step, width);
}

// Every rank learns which experts each row is sent to: as pairs of numbers, of which only the bytes matter.
void Experts::share_choices(Step& step) {
  const auto ranks = static_cast<std::size_t>(step.machine.group_size);
  told_.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) told_.insert(told_.end(), choices_.begin(), choices_.end());
  const std::vector<std::size_t> sends(ranks, 2 * choices_.size());
  std::vector<std::size_t> receives;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    receives.push_back(2 * chosen * (step.border(rank + 1) - step.border(rank)));
  }
  choices_.resize(step.positions.size() * chosen);
  step.all_to_all(told_.data(), choices_.data(), sends, receives, Element::f32);
}

// Own rows to the ranks of their experts; what comes is in the order of rows, as each rank's are in that of ranks.
void Experts::dispatch(Step& step, std::size_t width) {
  const Element element = step.machine.wire;
  const std::size_t bytes = width * element_bytes(element);
  const auto ranks = static_cast<std::size_t>(step.machine.group_size);
  const auto own = static_cast<std::size_t>(step.machine.group_rank);
  std::vector<std::size_t> sends(ranks, 0), receives(ranks, 0);
  wire_.sent.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < step.count; ++i) {
      if (!needs(step.first + i, rank)) continue;
      wire_.sent.resize(wire_.sent.size() + bytes);
      narrow_rows(step, at(step, x, i), width, 1, width, element, wire_.sent.data() + wire_.sent.size() - bytes);
      sends[rank] += width;
    }
    for (std::size_t row = step.border(rank); row < step.border(rank + 1); ++row) {
      if (needs(row, own)) receives[rank] += width;
    }
  }
  given_rows_.resize(sums_.size());
  wire_.received.resize(sums_.size() * element_bytes(element));
  step.all_to_all(wire_.sent.data(), wire_.received.data(), sends, receives, element);
  for (std::size_t row = 0; row < step.positions.size(); ++row) {
    if (!needs(row, own)) continue;
    const std::size_t place = computed_.numbers.size();
    float* const given = given_rows_.data() + place * width;
    widen_row(step, wire_.received.data() + place * bytes, width, element, false, given);
    computed_.add(row, given, sums_.data() + place * width);
  }
}

// What was computed here to the ranks whose rows these are; each adds up its own, in the order of ranks.
void Experts::combine(Step& step, std::size_t width) {
  const Element element = step.machine.wire;
  const std::size_t bytes = width * element_bytes(element);
  const auto ranks = static_cast<std::size_t>(step.machine.group_size);
  const auto own = static_cast<std::size_t>(step.machine.group_rank);
  const std::size_t first = step.border(own), count = step.border(own + 1) - first;
  std::vector<std::size_t> sends(ranks, 0), receives(ranks, 0);
  std::size_t coming = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (const std::size_t row : computed_.numbers) {
      if (row >= step.border(rank) && row < step.border(rank + 1)) sends[rank] += width;
    }
    for (std::size_t i = 0; i < count; ++i) receives[rank] += needs(first + i, rank) ? width : 0;
    coming += receives[rank];
  }
  wire_.sent.resize(computed_.numbers.size() * bytes);
  wire_.received.resize(coming * element_bytes(element));
  narrow_rows(step, sums_.data(), width, computed_.numbers.size(), width, element, wire_.sent.data());
  step.all_to_all(wire_.sent.data(), wire_.received.data(), sends, receives, element);
  step.first = first;
  step.count = count;
  step.apart = true;
  const Rows out = step.at(to);
  std::memset(out.data, 0, count * out.width * sizeof(float));
  const std::uint8_t* from = wire_.received.data();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!needs(first + i, rank)) continue;
      widen_row(step, from, width, element, true, out.row(i));
      from += bytes;
    }
  }
}

}  // namespace ferrule
