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

struct Expert {
  PackedMatrix gate_up, down;
  std::vector<float> gate_up_bias, down_bias;  // or none
};

struct Experts final : StepOperation {
  View x;
  std::size_t logits = 0;  // register: a number for each expert of the model
  std::size_t to = 0;      // this rank's part of the sum
  std::size_t total = 0, chosen = 0;
  Scoring scoring = Scoring::softmax;
  bool normalize = false;  // the chosen weights to a sum of one
  float factor = 1;
  std::vector<float> choice_bias;  // or none
  // Of experts: only those of the best groups can be chosen, by the sum of a group's `group_best` best ones.
  std::size_t groups = 1, chosen_groups = 1, group_best = 2;
  std::size_t first = 0;  // the model's number of experts.front()
  std::size_t inner = 0;
  Activation kind = Activation::silu;
  bool interleaved = false;  // the results of gate and up alternate
  std::vector<Expert> experts;
  std::shared_ptr<WeightPool> pool;  // of experts that stay on disk; nullptr: all are in memory
  std::vector<std::size_t> parts;    // of each expert, in the pool
  void run(Step& step) override;

 private:
  struct Choice {
    std::size_t expert;
    float weight;
  };
  void choose(const float* logits, std::vector<Choice>& best);
  void run_expert(Step& step, const Expert& expert, const std::vector<std::size_t>& rows,
                  const std::vector<float>& weights);

  std::vector<float> scores_, given_, gate_up_, apart_, gated_, result_;
  std::vector<std::size_t> needed_;
};

}  // namespace ferrule
