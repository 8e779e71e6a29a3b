#include "step/tokens.h"

#include <cstring>

namespace ferrule {

void narrow_rows(Step& step, const float* from, std::size_t stride, std::size_t count, std::size_t width,
                 Element element, std::uint8_t* to) {
  each_of(step, count, [&](std::size_t i) {
    step.machine.kernels.narrow(element, from + i * stride, width, to + i * width * element_bytes(element));
  });
}

void widen_row(const Step& step, const std::uint8_t* from, std::size_t count, Element element, bool add, float* to) {
  if (!add) std::memset(to, 0, count * sizeof(float));
  step.machine.kernels.add_narrow(element, from, count, 1, to);
}

void ReduceScatter::run(Step& step) {
  Register& all = step.machine.registers[reg];
  const Element element = step.machine.wire;
  const auto ranks = static_cast<std::size_t>(step.machine.group_size);
  const auto own = static_cast<std::size_t>(step.machine.group_rank);
  const std::size_t rows = step.total, width = all.width, bytes = width * element_bytes(element);
  const std::size_t first = step.border(own), count = step.border(own + 1) - first;
  wire_.sent.resize(rows * bytes);
  wire_.received.resize(ranks * count * bytes);
  narrow_rows(step, all.row(0), width, rows, width, element, wire_.sent.data());
  std::vector<std::size_t> sends, receives(ranks, count * width);
  for (std::size_t rank = 0; rank < ranks; ++rank) sends.push_back((step.border(rank + 1) - step.border(rank)) * width);
  step.all_to_all(wire_.sent.data(), wire_.received.data(), sends, receives, element);
  step.first = first;
  step.count = count;
  step.apart = true;
  each_row(step, [&](std::size_t i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      widen_row(step, wire_.received.data() + (rank * count + i) * bytes, width, element, rank > 0, all.row(first + i));
    }
  });
}

void AllGather::run(Step& step) { gather_rows(step, reg, exact ? Element::f32 : step.machine.wire, wire_); }

void gather_rows(Step& step, std::size_t reg, Element element, Wire& wire) {
  Register& all = step.machine.registers[reg];
  const auto ranks = static_cast<std::size_t>(step.machine.group_size);
  const std::size_t rows = step.total, width = all.width, bytes = width * element_bytes(element);
  const std::size_t own = step.count * bytes;
  wire.sent.resize(ranks * own);
  wire.received.resize(rows * bytes);
  narrow_rows(step, all.row(step.first), width, step.count, width, element, wire.sent.data());
  for (std::size_t rank = 1; rank < ranks; ++rank) std::memcpy(wire.sent.data() + rank * own, wire.sent.data(), own);
  std::vector<std::size_t> sends(ranks, step.count * width), receives;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    receives.push_back((step.border(rank + 1) - step.border(rank)) * width);
  }
  step.all_to_all(wire.sent.data(), wire.received.data(), sends, receives, element);
  step.first = 0;
  step.count = rows;
  step.apart = false;
  each_row(step, [&](std::size_t i) {
    widen_row(step, wire.received.data() + i * bytes, width, element, false, all.row(i));
  });
}

}  // namespace ferrule
