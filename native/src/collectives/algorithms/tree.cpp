// Along a spanning tree, cut into chunks that follow each other: every link carries the data once in each direction.
#include <algorithm>

#include "collectives/algorithms/algorithms.h"

namespace ferrule {
namespace {

constexpr std::size_t kSmallestChunk = 16 << 10;
constexpr std::size_t kLargestChunk = 256 << 10;
constexpr std::size_t kChunksInFlight = 8;
constexpr std::size_t kSlots = 4;

template <class Each>
void for_chunks(std::size_t bytes, std::size_t element, Each&& each) {
  const std::size_t chunk = tree_chunk(bytes, element);
  // An empty array has one empty chunk: its headers tell the ranks of each other.
  std::size_t at = 0;
  do {
    const std::size_t n = std::min(chunk, bytes - at);
    each(at, n);
    at += n;
  } while (at < bytes);
}

// Blocks that arrive from the neighbours for one combination.
class Arrivals {
 public:
  Arrivals(const Tree& tree, std::size_t slot_bytes, std::byte* scratch) {
    for (const int neighbour : tree.neighbours()) {
      slots_.emplace_back(neighbour, Slots(scratch, slot_bytes, kSlots));
      scratch += kSlots * slot_bytes;
    }
  }

  // Receive a chunk from every neighbour but `except`; our own contribution comes first.
  void receive(Program& program, int except, const std::byte* own, std::size_t bytes) {
    sources_ = {own};
    after_.clear();
    taken_.clear();
    for (auto& [neighbour, slots] : slots_) {
      if (neighbour == except) continue;
      const Slots::Slot slot = slots.take();
      after_.push_back(program.receive(neighbour, {slot.data, bytes}, {slot.free}));
      sources_.push_back(slot.data);
      taken_.emplace_back(&slots, slot);
    }
  }
  bool none() const { return taken_.empty(); }
  // The first slot's memory, where a sum that goes on may lie.
  std::byte* first() const { return taken_.front().second.data; }
  Program::Step combine(Program& program, ReduceFunction reduce, std::byte* target, std::size_t elements, int ranks) {
    const Program::Step step = program.combine(reduce, target, sources_, elements, ranks, after_);
    for (auto& [slots, slot] : taken_) slots->release(slot, step);
    return step;
  }
  void hold_first(Program::Step until) { taken_.front().first->release(taken_.front().second, until); }

 private:
  std::vector<std::pair<int, Slots>> slots_;
  std::vector<const void*> sources_;
  std::vector<Program::Step> after_;
  std::vector<std::pair<Slots*, Slots::Slot>> taken_;
};

}  // namespace

std::size_t tree_chunk(std::size_t bytes, std::size_t element) {
  return std::clamp(bytes / kChunksInFlight, kSmallestChunk, kLargestChunk) / element * element;
}

std::size_t tree_scratch(const Tree& tree, std::size_t bytes, std::size_t element) {
  return tree.neighbours().size() * kSlots * std::min(bytes, tree_chunk(bytes, element));
}

void tree_all_reduce(Program& program, const Tree& tree, const Array& data, const Combine& combine,
                     std::byte* scratch) {
  const int parent = tree.toward(tree.root());
  Arrivals arrivals(tree, std::min(data.bytes, tree_chunk(data.bytes, data.element)), scratch);
  for_chunks(data.bytes, data.element, [&](std::size_t at, std::size_t bytes) {
    std::byte* const chunk = data.data + at;
    arrivals.receive(program, parent, chunk, bytes);
    Program::Step done = Program::kNone;
    if (!arrivals.none()) {
      const ReduceFunction reduce = parent < 0 ? combine.last : combine.partial;
      done = arrivals.combine(program, reduce, chunk, bytes / data.element, combine.ranks);
    }
    if (parent >= 0) {
      const Program::Step up = program.send(parent, {chunk, bytes}, {done});
      done = program.receive(parent, {chunk, bytes}, {up});
    }
    for (const int child : tree.neighbours()) {
      if (child != parent) program.send(child, {chunk, bytes}, {done});
    }
  });
}

void tree_reduce(Program& program, const Tree& tree, int rank, const std::vector<int>& owners, const std::byte* in,
                 const Array& out, const Combine& combine, std::byte* scratch) {
  Arrivals arrivals(tree, std::min(out.bytes, tree_chunk(out.bytes, out.element)), scratch);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const int next = tree.toward(owners[i]);
    for_chunks(out.bytes, out.element, [&](std::size_t at, std::size_t bytes) {
      const std::byte* const own = in + i * out.bytes + at;
      const std::size_t elements = bytes / out.element;
      arrivals.receive(program, next, own, bytes);
      if (owners[i] == rank) {
        arrivals.combine(program, combine.last, out.data + at, elements, combine.ranks);
      } else if (arrivals.none()) {
        program.send(next, {own, bytes});
      } else {
        std::byte* const sum = arrivals.first();
        const Program::Step done = arrivals.combine(program, combine.partial, sum, elements, combine.ranks);
        arrivals.hold_first(program.send(next, {sum, bytes}, {done}));
      }
    });
  }
}

void tree_broadcast(Program& program, const Tree& tree, int root, const Array& data) {
  const int from = tree.toward(root);
  for_chunks(data.bytes, data.element, [&](std::size_t at, std::size_t bytes) {
    std::byte* const chunk = data.data + at;
    const Program::Step here = from < 0 ? Program::kNone : program.receive(from, {chunk, bytes});
    for (const int neighbour : tree.neighbours()) {
      if (neighbour != from) program.send(neighbour, {chunk, bytes}, {here});
    }
  });
}

}  // namespace ferrule
