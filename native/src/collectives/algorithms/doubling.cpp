// In ceil(log2(size)) rounds every rank knows everything: what a rank knows doubles in each. (Bruck and others,
// "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.)
#include <algorithm>

#include "collectives/algorithms/algorithms.h"

namespace ferrule {

void doubling_gather(Program& program, int rank, int size, std::byte* slots, std::size_t bytes) {
  Program::Step known = Program::kNone;
  for (int have = 1; have < size; have *= 2) {
    const auto more = static_cast<std::size_t>(std::min(have, size - have)) * bytes;
    program.send((rank + have) % size, {slots, more}, {known});
    // One dependency is enough: the rounds of every rank come in their order.
    known =
        program.receive((rank + size - have) % size, {slots + static_cast<std::size_t>(have) * bytes, more}, {known});
  }
}

}  // namespace ferrule
