// One step: the tokens of a batch on their way through a program, and the registers that its operations work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compute/multiply.h"
#include "compute/pool.h"
#include "group/group.h"
#include "step/cache.h"

namespace ferrule {

// `tokens` new tokens of a sequence that has `seen` earlier ones.
struct SequenceSpan {
  std::int64_t sequence = 0;
  std::size_t seen = 0;
  std::size_t tokens = 0;
  std::size_t adapter = 0;  // its number, from 1; 0: none
};

// float32 numbers, a row for each token of the batch.
struct Register {
  std::size_t width = 0;
  std::vector<float> numbers;

  float* row(std::size_t index) { return numbers.data() + index * width; }
};

// Of a register, the rows that operations work on.
struct Rows {
  std::size_t width = 0;
  float* data = nullptr;

  float* row(std::size_t index) const { return data + index * width; }
};

// Thrown where the group has ended; its own failure says why.
struct GroupEnded {
  Status status;
};

struct RotaryTable {
  std::vector<float> frequencies;  // radians per token
  float factor = 1;                // of the sines and cosines
  std::vector<float> cos, sin;     // of this batch: (tokens, frequencies)
};

// Messages of an operation, of which each keeps its own from step to step.
struct Wire {
  std::vector<std::uint8_t> sent, received;
};

struct Machine {
  Pool pool;
  Multiplier multiplier;
  const RowTable& kernels = row_kernels();
  KvCache cache;
  Group* group = nullptr;  // of the ranks that share the layers; nullptr: alone
  int group_size = 1;
  int group_rank = 0;
  Group* context = nullptr;  // of the ranks with other pages of the cache, by their place in its stripe; nullptr: none
  Element wire = Element::bf16;  // in which sums travel
  Precision precision = Precision::fast;
  std::vector<RotaryTable> rotary;
  std::vector<Register> registers;

  Machine(int threads, KvCache cache_) : pool(threads), multiplier(pool), cache(std::move(cache_)) {}
};

struct Step {
  Machine& machine;
  std::span<const SequenceSpan> spans;
  std::span<const std::int64_t> tokens;  // ids; empty where the first operation needs none; in a run, of the rows here
  std::span<const std::size_t> wanted;   // rows of tokens whose results are wanted
  double timeout_seconds = 0;            // of each collective
  bool shared_out = false;               // among the ranks of the context: registers have the rows of this one only
  std::size_t total = 0;                 // tokens of the batch
  std::size_t first = 0;                 // of the batch, the one where the rows begin that operations work on
  std::size_t count = 0;                 // of these rows
  bool apart = false;                    // they are this rank's own, while other ranks of the layer work on theirs
  std::vector<std::int64_t> positions;   // of each row of the registers

  Rows at(std::size_t index) {
    Register& found = machine.registers[index];
    return {found.width, found.row(shared_out ? 0 : first)};
  }
  // The first row of the batch that is `rank`'s own; where `rank` is the number of ranks, that behind the last.
  std::size_t border(std::size_t rank) const { return total * rank / static_cast<std::size_t>(machine.group_size); }
  // Tokens of each rank of the context, where they are shared out; the last one may have fewer.
  std::size_t part() const { return (total + machine.cache.stripe().ranks - 1) / machine.cache.stripe().ranks; }
  // Do it in `group`. Throws GroupEnded.
  void run_in(Group& group, const Operation& operation) const;
  // Sum `count` numbers over the ranks of `group`, in place. Throws GroupEnded.
  void all_reduce(Group& group, void* data, std::size_t count, Element element) const;
  // Give each rank of the layer its part of `in`; what comes stands in `out` in the order of ranks. Throws GroupEnded.
  void all_to_all(const void* in, void* out, const std::vector<std::size_t>& sends,
                  const std::vector<std::size_t>& receives, Element element) const;
};

// Rows by which work is shared out; one or two are not worth waking threads for.
template <class Body>
void each_of(Step& step, std::size_t rows, Body&& body) {
  const auto some = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) body(i);
  };
  if (rows < 4) {
    some(0, rows);
  } else {
    step.machine.pool.share(rows, some);
  }
}

template <class Body>
void each_row(Step& step, Body&& body) {
  each_of(step, step.count, body);
}

// An operation of a program. It is run by one thread, which may share its work out over the machine's pool.
class StepOperation {
 public:
  virtual ~StepOperation() = default;
  virtual void run(Step& step) = 0;
};

class StepProgram {
 public:
  explicit StepProgram(Machine& machine) : machine_(machine) {}

  std::size_t add_register(std::size_t width);
  void add(std::unique_ptr<StepOperation> operation) { operations_.push_back(std::move(operation)); }
  std::size_t length() const { return operations_.size(); }

  // Run operations `first` up to `length` (not included) on a batch. `hidden`: what the stage before sent, float32
  // (rows here, width), for register 0; or nullptr. Those before `first`, if any, have just been run on the same batch,
  // and have left its rows on every rank. Throws GroupEnded, std::bad_alloc.
  void run(Step& step, const float* hidden, std::size_t length, std::size_t first = 0);

 private:
  void begin(Step& step, const float* hidden);

  Machine& machine_;
  std::vector<std::unique_ptr<StepOperation>> operations_;
  Wire wire_;
};

}  // namespace ferrule
