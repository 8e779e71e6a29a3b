// A spanning tree of the ranks: parent, children, and what lies below each.
#pragma once

#include <vector>

namespace ferrule {

class Tree {
 public:
  Tree() = default;
  // `parents` by rank, -1 for the root. Throws std::invalid_argument when that is no tree.
  Tree(const std::vector<int>& parents, int rank);

  bool empty() const { return neighbours_.empty(); }
  const std::vector<int>& neighbours() const { return neighbours_; }  // in ascending order
  // The neighbour on the way to `target`; -1 for this rank itself.
  int toward(int target) const { return toward_[static_cast<std::size_t>(target)]; }
  int root() const { return root_; }

 private:
  std::vector<int> neighbours_;
  std::vector<int> toward_;
  int root_ = -1;
};

}  // namespace ferrule
