// A mixture of experts: a router's logits choose some experts for each token, whose results are summed by weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "step/operations.h"

namespace ferrule {

enum class Scoring : std::uint8_t {
  softmax,            // over all experts, then the best are chosen
  softmax_of_chosen,  // the best are chosen, then the softmax is over them
  sigmoid,            // of each; `choice_bias` is added for choosing only
};

// How tokens come to the ranks that have their experts whole.
enum class Sharing : std::uint8_t {
  masked,      // every rank has all rows; its part of the sums is left in `to`, to be summed over ranks
  combined,    // every rank has all rows; results go to the ranks whose rows these are, which go on with them only
  dispatched,  // each rank has its own rows: they go to the ranks of their experts, and the results come back
};

struct Expert {
  PackedMatrix gate_up, down;
  std::vector<float> gate_up_bias, down_bias;  // or none
};

struct Experts final : StepOperation {
  View x;
  std::size_t logits = 0;  // register: a number for each expert of the model
  std::size_t to = 0;      // the sums, or (masked) this rank's part of them
  std::size_t total = 0, chosen = 0;
  Scoring scoring = Scoring::softmax;
  bool normalize = false;  // the chosen weights to a sum of one
  float factor = 1;
  std::vector<float> choice_bias;  // or none
  // Of experts: only those of the best groups can be chosen, by the sum of a group's `group_best` best ones.
  std::size_t groups = 1, chosen_groups = 1, group_best = 2;
  std::size_t first = 0;  // the model's number of experts.front()
  Sharing sharing = Sharing::masked;
  std::vector<std::size_t> bounds;  // by rank, the first expert that is its own, and one behind the last; unless masked
  std::size_t inner = 0;
  Activation kind = Activation::silu;
  bool interleaved = false;  // the results of gate and up alternate
  std::vector<Expert> experts;
  std::shared_ptr<WeightPool> pool;  // of experts that stay on disk; nullptr: all are in memory
  std::vector<std::size_t> parts;    // of each expert, in the pool
  void run(Step& step) override;

 private:
  struct Choice {
    std::uint32_t expert = 0;
    float weight = 0;
  };
  static_assert(sizeof(Choice) == 2 * sizeof(float), "choices travel as pairs of numbers of 4 bytes");
  // Of rows that are computed here, by their place in the three: their number, and where they are read and written.
  struct Computed {
    std::vector<std::size_t> numbers;
    std::vector<const float*> from;
    std::vector<float*> to;
    void clear();
    void add(std::size_t number, const float* read, float* written);
  };
  void choose(const float* logits, Choice* best);
  void exchange(Step& step);
  void share_choices(Step& step);
  void dispatch(Step& step, std::size_t width);
  void combine(Step& step, std::size_t width);
  bool needs(std::size_t row, std::size_t rank) const;  // whether an expert that it is sent to is `rank`'s
  void compute(Step& step);
  void run_expert(Step& step, const Expert& expert, const std::vector<std::size_t>& places,
                  const std::vector<float>& weights);

  std::vector<Choice> choices_;  // `chosen` of each row
  std::vector<Choice> told_;     // the same of own rows, once for each rank
  Computed computed_;
  Wire wire_;
  std::vector<float> given_rows_, sums_;  // of rows that are computed here for other ranks
  std::vector<float> scores_, given_, gate_up_, apart_, gated_, result_;
  std::vector<std::size_t> needed_;
};

}  // namespace ferrule
