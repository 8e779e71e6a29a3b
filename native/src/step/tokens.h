// Operations by which the ranks that share layers share out a step's tokens: each works on rows of its own, and what
// needs all of them is joined again.
#pragma once

#include <cstddef>

#include "step/step.h"

namespace ferrule {

// The sum over ranks of a register, each rank that of its own rows, on which operations work from here on. Terms are
// added in the order of ranks, each as it travels, so that a row's bits are the same whose it is.
struct ReduceScatter final : StepOperation {
  std::size_t reg = 0;
  void run(Step& step) override;

 private:
  Wire wire_;
};

// A register whole on every rank, on which operations work from here on: all ranks have the bits that have travelled.
struct AllGather final : StepOperation {
  std::size_t reg = 0;
  bool exact = false;  // as float32
  void run(Step& step) override;

 private:
  Wire wire_;
};

// The same as `AllGather`, of `element` numbers.
void gather_rows(Step& step, std::size_t reg, Element element, Wire& wire);

// Rows of `from` (`width` numbers each, `stride` apart) as they travel, one behind the other.
void narrow_rows(Step& step, const float* from, std::size_t stride, std::size_t count, std::size_t width,
                 Element element, std::uint8_t* to);
// `to` becomes (or `add`: has added) what has travelled as `from`: `count` numbers.
void widen_row(const Step& step, const std::uint8_t* from, std::size_t count, Element element, bool add, float* to);

}  // namespace ferrule
