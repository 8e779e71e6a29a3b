// Collective algorithms of several hops (recursive doubling, tree, ring), written as programs.
#pragma once

#include "collectives/algorithms/spanning_tree.h"
#include "collectives/program.h"

namespace ferrule {

// An array, as every algorithm here sees it.
struct Array {
  std::byte* data;
  std::size_t bytes;
  std::size_t element;
};

// Functions to combine what comes from below, and the last time, when all ranks are in it.
struct Combine {
  ReduceFunction partial;
  ReduceFunction last;
  int ranks;
};

// Memory for what is on its way through, in slots that are used again and again.
class Slots {
 public:
  Slots(std::byte* memory, std::size_t slot_bytes, std::size_t count)
      : memory_(memory), slot_bytes_(slot_bytes), last_(count, Program::kNone) {}

  struct Slot {
    std::byte* data;
    Program::Step free;  // the step after which it may be written
    std::size_t index;
  };
  Slot take() {
    const std::size_t index = next_++ % last_.size();
    return {memory_ + index * slot_bytes_, last_[index], index};
  }
  // The slot is in use until `step` is done.
  void release(const Slot& slot, Program::Step step) { last_[slot.index] = step; }

 private:
  std::byte* const memory_;
  const std::size_t slot_bytes_;
  std::vector<Program::Step> last_;
  std::size_t next_ = 0;
};

// Size of the pieces of a long array in the tree's pipeline, and the scratch memory that its reductions need.
std::size_t tree_chunk(std::size_t bytes, std::size_t element);
std::size_t tree_scratch(const Tree& tree, std::size_t bytes, std::size_t element);

// Up to the root and down again. The last combination is the root's.
void tree_all_reduce(Program& program, const Tree& tree, const Array& data, const Combine& combine, std::byte* scratch);
// Part i of every rank's `in` (parts of out.bytes) combined into `out` at owners[i], for one or several owners.
void tree_reduce(Program& program, const Tree& tree, int rank, const std::vector<int>& owners, const std::byte* in,
                 const Array& out, const Combine& combine, std::byte* scratch);
// Sends what `root` has in `data` to all.
void tree_broadcast(Program& program, const Tree& tree, int root, const Array& data);

// At least three ranks in a circle. Half of the data goes around one way, half the other.
struct Ring {
  std::vector<int> order;
  int position = 0;  // this rank's place in it

  int size() const { return static_cast<int>(order.size()); }
  int at(int place) const { return order[static_cast<std::size_t>(wrap(place))]; }
  int wrap(int place) const { return ((place % size()) + size()) % size(); }
};
std::size_t ring_scratch();
void ring_all_reduce(Program& program, const Ring& ring, const Array& data, const Combine& combine, std::byte* scratch);
// `in`: a part of out.bytes per rank, in rank order; `out`: ours, combined.
void ring_reduce_scatter(Program& program, const Ring& ring, const std::byte* in, const Array& out,
                         const Combine& combine, std::byte* scratch);
// `out` holds a part of `bytes` per rank, in rank order; ours is there already.
void ring_all_gather(Program& program, const Ring& ring, std::byte* out, std::size_t bytes, std::size_t element);

// Parts of `bytes` of all ranks into `slots`, where slot j is the part of rank - j (modulo size); slot 0 is ours.
void doubling_gather(Program& program, int rank, int size, std::byte* slots, std::size_t bytes);

}  // namespace ferrule
