// Operations of step programs, each what its fields say. Registers are given by their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/product.h"
#include "kernels/rows.h"
#include "step/step.h"
#include "step/stream.h"

namespace ferrule {

// A run of numbers in each row of a register.
struct View {
  std::size_t reg = 0;
  std::size_t offset = 0;
};

inline float* at(Step& step, View view, std::size_t row) { return step.at(view.reg).row(row) + view.offset; }

// The embeddings of tokens `first` to `first + rows of the table`, times `factor`; zeros for others, and summed over
// ranks, where `shared`.
struct Embed final : StepOperation {
  PackedMatrix table;
  std::int64_t first = 0;
  float factor = 1;
  bool shared = false;
  std::size_t to = 0;
  void run(Step& step) override;
};

// Each of `count` runs of `width` numbers by itself.
struct Norm final : StepOperation {
  View from, to;
  std::size_t width = 0, count = 1;
  std::vector<float> weight, bias;  // width, or none
  float eps = 0;
  bool mean = false;
  void run(Step& step) override;
};

struct Product final : StepOperation {
  View from;
  std::size_t to = 0;  // the results of all matrices, side by side, each filled up to a multiple of 16
  std::vector<PackedMatrix> matrices;
  std::vector<float> bias;  // as wide as all results, or none
  void run(Step& step) override;
};

// Matrices of a LoRA adapter for a product: its results, times `scale`, are added to those of the adapter's sequences.
struct Lora {
  std::size_t adapter = 0;
  float scale = 1;
  PackedMatrix a, b;  // (rank, inputs), (outputs, rank)
};

// What adapters add to the results of a product that was computed before.
struct Adapt final : StepOperation {
  View from, to;
  std::vector<Lora> adapters;
  void run(Step& step) override;

 private:
  std::vector<std::size_t> rows_;
  std::vector<float> given_, low_, found_;  // a row for each of `rows_`
};

// Each head times a matrix of its own: head h takes the numbers from h * from_stride on, as many as its matrix has
// columns, and puts its results, and behind them `kept` numbers that follow in `from`, from h * to_stride on.
struct HeadProduct final : StepOperation {
  View from;
  std::size_t to = 0;
  std::size_t from_stride = 0, to_stride = 0, kept = 0;
  std::vector<PackedMatrix> matrices;
  void run(Step& step) override;

 private:
  std::vector<Factor> factors_;
  std::vector<const float*> given_;
};

struct Rotate final : StepOperation {
  View heads;
  std::size_t count = 0, width = 0;
  std::size_t table = 0;
  bool interleaved = false;
  void run(Step& step) override;
};

// Where a context has other ranks each keeps its pages' keys and values, and attends to them for all tokens of the
// batch: of these partial results, by the highest logit and the sum of exponentials of each (Dao and others,
// "Flash-Decoding", 2023), each rank makes those of its rows. Queries and partial results travel, and no keys but new
// ones.
struct Attend final : StepOperation {
  View query, key, value;
  std::size_t to = 0;
  std::size_t layer = 0;  // of the cache
  std::size_t heads = 0;
  float scale = 1, softcap = 0;
  std::int64_t window = 0;
  std::vector<float> sinks;  // one for each head, or none
  void run(Step& step) override;

 private:
  struct Tile {
    std::size_t span, head, first, count;  // queries `first` on of those that share key/value head `head`
  };
  static Rows rows_of(Step& step, View view) { return {step.at(view.reg).width, at(step, view, 0)}; }
  void gather_rows(Step& step);
  void run_tile(Step& step, const Tile& tile, std::size_t row);
  void merge(Step& step);

  std::vector<Tile> tiles_;
  Rows queries_, keys_, values_, results_;                  // of each token of the batch
  std::vector<float> gathered_, partial_, highest_, sums_;  // the last two: (tokens, heads)
  std::vector<std::uint8_t> sent_, received_;
};

struct Gate final : StepOperation {
  View gate, up;
  bool gated = true;  // else only the activation of `gate`
  std::size_t to = 0, width = 0;
  Activation kind = Activation::silu;
  void run(Step& step) override;
};

// The sum over ranks of a register, plus `bias`. With `add`: added to register `to`, times `factor`; else left there.
struct Reduce final : StepOperation {
  std::size_t from = 0, to = 0;
  bool add = true;
  bool shared = true;  // false: every rank has the whole
  float factor = 1;
  std::vector<float> bias;
  void run(Step& step) override;

 private:
  std::vector<std::uint8_t> wire_;
};

struct Scale final : StepOperation {
  std::size_t reg = 0;
  float factor = 1, softcap = 0;
  void run(Step& step) override;
};

// Keep only the rows that are wanted, in all operations that follow: on the first rank of the context.
struct Select final : StepOperation {
  std::size_t from = 0, to = 0;
  void run(Step& step) override;
};

// Matrices that stay on disk: a part of them is in memory from `Enter` to `Leave`.
struct Enter final : StepOperation {
  std::shared_ptr<WeightPool> pool;
  std::size_t part = 0;
  void run(Step& step) override;
};

struct Leave final : StepOperation {
  std::shared_ptr<WeightPool> pool;
  void run(Step& step) override;
};

// Join the ranks' parts of each row on rank 0. `widths`: numbers that each rank has; one alone: every rank has all.
struct Gather final : StepOperation {
  std::size_t from = 0, to = 0;
  std::vector<std::size_t> widths;
  void run(Step& step) override;

 private:
  std::vector<float> parts_;
};

}  // namespace ferrule
