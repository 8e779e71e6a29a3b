#include "step/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "assertions.h"
#include "step/tokens.h"

namespace ferrule {
namespace {

Dtype dtype_of(Element element) {
  switch (element) {
    case Element::bf16:
      return Dtype::bf16;
    case Element::f16:
      return Dtype::f16;
    case Element::f32:
      return Dtype::f32;
  }
  return Dtype::f32;
}

void find_angles(RotaryTable& table, std::span<const std::int64_t> positions) {
  const std::size_t half = table.frequencies.size();
  table.cos.resize(positions.size() * half);
  table.sin.resize(positions.size() * half);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto position = static_cast<float>(positions[i]);
    for (std::size_t k = 0; k < half; ++k) {
      const float angle = position * table.frequencies[k];
      table.cos[i * half + k] = std::cos(angle) * table.factor;
      table.sin[i * half + k] = std::sin(angle) * table.factor;
    }
  }
}

}  // namespace

void Step::run_in(Group& group, const Operation& operation) const {
  const Status status = group.run(&operation, 1, timeout_seconds);
  if (status != Status::ok) throw GroupEnded{status};
}

void Step::all_reduce(Group& group, void* data, std::size_t numbers, Element element) const {
  Operation operation;
  operation.op = Op::all_reduce;
  operation.dtype = dtype_of(element);
  operation.reduction = Reduction::sum;
  operation.out = data;
  operation.count = numbers;
  run_in(group, operation);
}

void Step::all_to_all(const void* in, void* out, const std::vector<std::size_t>& sends,
                      const std::vector<std::size_t>& receives, Element element) const {
  Operation operation;
  operation.op = Op::all_to_all;
  operation.dtype = dtype_of(element);
  operation.in = in;
  operation.out = out;
  operation.send_counts = sends.data();
  operation.recv_counts = receives.data();
  run_in(*machine.group, operation);
}

std::size_t StepProgram::add_register(std::size_t width) {
  machine_.registers.push_back({width, {}});
  return machine_.registers.size() - 1;
}

void StepProgram::run(Step& step, const float* hidden, std::size_t length, std::size_t first) {
  FERRULE_ASSERT(first <= length && length <= operations_.size());
  step.positions.clear();
  for (const SequenceSpan& span : step.spans) {
    for (std::size_t i = 0; i < span.tokens; ++i) step.positions.push_back(static_cast<std::int64_t>(span.seen + i));
  }
  step.total = step.count = step.positions.size();
  step.first = 0;
  step.apart = false;
  if (step.shared_out) {
    step.first = std::min(step.total, machine_.cache.stripe().rank * step.part());
    step.count = std::min(step.total - step.first, step.part());
    const auto begin = step.positions.begin() + static_cast<std::ptrdiff_t>(step.first);
    step.positions = {begin, begin + static_cast<std::ptrdiff_t>(step.count)};
    if (!step.tokens.empty()) step.tokens = step.tokens.subspan(step.first, step.count);
  }
  if (first == 0) begin(step, hidden);
  for (std::size_t i = first; i < length; ++i) operations_[i]->run(step);
  if (step.apart) gather_rows(step, 0, Element::f32, wire_);  // what a stage hands on is whole on every rank
}

void StepProgram::begin(Step& step, const float* hidden) {
  for (const SequenceSpan& span : step.spans) machine_.cache.reserve(span.sequence, span.seen, span.tokens);
  for (RotaryTable& table : machine_.rotary) find_angles(table, step.positions);
  const std::size_t rows = std::max(step.count, step.wanted.size());
  for (Register& each : machine_.registers) {
    if (each.numbers.size() < rows * each.width) each.numbers.resize(rows * each.width);
  }
  if (hidden != nullptr) {
    Register& first = machine_.registers.front();
    std::memcpy(first.numbers.data(), hidden, step.count * first.width * sizeof(float));
  }
}

}  // namespace ferrule
