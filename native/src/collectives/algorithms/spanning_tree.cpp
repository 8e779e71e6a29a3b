#include "collectives/algorithms/spanning_tree.h"

#include <algorithm>
#include <stdexcept>

namespace ferrule {

Tree::Tree(const std::vector<int>& parents, int rank) : toward_(parents.size(), -1) {
  const int size = static_cast<int>(parents.size());
  const auto parent = [&](int of) { return parents[static_cast<std::size_t>(of)]; };
  for (int start = 0; start < size; ++start) {
    int steps = 0;
    int at = start;
    while (parent(at) >= 0) {
      if (parent(at) >= size || ++steps > size) throw std::invalid_argument("the tree's parents are no tree");
      at = parent(at);
    }
    if (root_ >= 0 && at != root_) throw std::invalid_argument("the tree has two roots");
    root_ = at;
  }
  // A rank below this one is reached over the child above it, any other over the parent.
  for (int target = 0; target < size; ++target) {
    if (target == rank) continue;
    int at = target;
    while (at >= 0 && parent(at) != rank) at = parent(at);
    toward_[static_cast<std::size_t>(target)] = at >= 0 ? at : parent(rank);
  }
  for (int other = 0; other < size; ++other) {
    if (other != rank && (parent(other) == rank || parent(rank) == other)) neighbours_.push_back(other);
  }
}

}  // namespace ferrule
