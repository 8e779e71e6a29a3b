#include "step/operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/numbers.h"
#include "step/tokens.h"

namespace ferrule {

void Embed::run(Step& step) {
  const Rows out = step.at(to);
  const auto rows = static_cast<std::int64_t>(table.layout.rows);
  each_row(step, [&](std::size_t i) {
    float* const row = out.row(i);
    const std::int64_t token = step.tokens[i] - first;
    std::memset(row, 0, out.width * sizeof(float));
    if (token < 0 || token >= rows) return;
    read_row(table, static_cast<std::size_t>(token), row);
    if (factor != 1) {
      for (std::size_t k = 0; k < table.layout.columns; ++k) row[k] *= factor;
    }
  });
  if (shared && step.machine.group_size > 1) {
    step.all_reduce(*step.machine.group, out.data, step.count * out.width, Element::f32);
  }
}

void Norm::run(Step& step) {
  const float* const by = weight.empty() ? nullptr : weight.data();
  const float* const plus = bias.empty() ? nullptr : bias.data();
  each_row(step, [&](std::size_t i) {
    const float* const x = at(step, from, i);
    float* const y = at(step, to, i);
    for (std::size_t n = 0; n < count; ++n) {
      step.machine.kernels.norm(x + n * width, width, by, plus, eps, mean, y + n * width);
    }
  });
}

void Product::run(Step& step) {
  const Rows out = step.at(to);
  Factor factors[4];
  std::size_t row = 0;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    factors[i] = {matrices[i], out.data + row, out.width};
    row += matrices[i].layout.blocks() * kBlockRows;
  }
  Machine& machine = step.machine;
  machine.multiplier.multiply({factors, matrices.size()}, at(step, from, 0), step.count, step.at(from.reg).width,
                              machine.precision);
  if (bias.empty()) return;
  each_row(step, [&](std::size_t i) { machine.kernels.add(out.row(i), bias.data(), bias.size(), 1); });
}

void Adapt::run(Step& step) {
  const auto adapted = [](const SequenceSpan& span) { return span.adapter != 0; };
  if (std::none_of(step.spans.begin(), step.spans.end(), adapted)) return;
  Machine& machine = step.machine;
  for (const Lora& each : adapters) {
    rows_.clear();
    for (std::size_t row = 0; const SequenceSpan& span : step.spans) {
      for (std::size_t i = 0; i < span.tokens; ++i, ++row) {
        const bool here = row >= step.first && row < step.first + step.count;
        if (here && span.adapter == each.adapter) rows_.push_back(row - step.first);
      }
    }
    if (rows_.empty()) continue;
    const std::size_t count = rows_.size(), columns = each.a.layout.columns, rows = each.b.layout.rows;
    const std::size_t low = each.a.layout.blocks() * kBlockRows, high = each.b.layout.blocks() * kBlockRows;
    given_.resize(count * columns);
    low_.resize(count * low);
    found_.resize(count * high);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(given_.data() + i * columns, at(step, from, rows_[i]), columns * sizeof(float));
    }
    const Factor down{each.a, low_.data(), low}, up{each.b, found_.data(), high};
    machine.multiplier.multiply({&down, 1}, given_.data(), count, columns, machine.precision);
    machine.multiplier.multiply({&up, 1}, low_.data(), count, low, machine.precision);
    for (std::size_t i = 0; i < count; ++i) {
      machine.kernels.add(at(step, to, rows_[i]), found_.data() + i * high, rows, each.scale);
    }
  }
}

void HeadProduct::run(Step& step) {
  const Rows out = step.at(to);
  factors_.clear();
  given_.clear();
  for (std::size_t h = 0; h < matrices.size(); ++h) {
    factors_.push_back({matrices[h], out.data + h * to_stride, out.width});
    given_.push_back(at(step, from, 0) + h * from_stride);
  }
  Machine& machine = step.machine;
  machine.multiplier.multiply_each(factors_, given_, step.count, step.at(from.reg).width, machine.precision);
  if (kept == 0) return;
  each_row(step, [&](std::size_t i) {
    for (std::size_t h = 0; h < matrices.size(); ++h) {
      const MatrixLayout& layout = matrices[h].layout;
      std::memcpy(out.row(i) + h * to_stride + layout.rows, at(step, from, i) + h * from_stride + layout.columns,
                  kept * sizeof(float));
    }
  });
}

void Rotate::run(Step& step) {
  const RotaryTable& angles = step.machine.rotary[table];
  const std::size_t half = angles.frequencies.size();
  each_row(step, [&](std::size_t i) {
    float* const x = at(step, heads, i);
    for (std::size_t n = 0; n < count; ++n) {
      step.machine.kernels.rotate(x + n * width, half, angles.cos.data() + i * half, angles.sin.data() + i * half,
                                  interleaved);
    }
  });
}

void Gate::run(Step& step) {
  each_row(step, [&](std::size_t i) {
    step.machine.kernels.gate(kind, at(step, gate, i), gated ? at(step, up, i) : nullptr, width, step.at(to).row(i));
  });
}

void Reduce::run(Step& step) {
  const Rows source = step.at(from);
  const Rows target = step.at(to);
  const RowTable& kernels = step.machine.kernels;
  const std::size_t numbers = step.count * source.width;
  const bool summed = shared && step.machine.group_size > 1;
  const Element element = summed ? step.machine.wire : Element::f32;
  const void* result = source.data;
  if (summed && element == Element::f32) {
    step.all_reduce(*step.machine.group, source.data, numbers, element);
  } else if (summed) {
    wire_.resize(numbers * element_bytes(element));
    result = wire_.data();
    narrow_rows(step, source.data, source.width, step.count, source.width, element, wire_.data());
    step.all_reduce(*step.machine.group, wire_.data(), numbers, element);
  }
  each_row(step, [&](std::size_t i) {
    float* const row = target.row(i);
    const auto* const some = static_cast<const std::uint8_t*>(result) + i * source.width * element_bytes(element);
    if (add || static_cast<const void*>(row) != some) {  // else it is there already
      if (!add) std::memset(row, 0, target.width * sizeof(float));
      kernels.add_narrow(element, some, target.width, factor, row);
    }
    if (!bias.empty()) kernels.add(row, bias.data(), bias.size(), factor);
  });
}

void Scale::run(Step& step) {
  const Rows numbers = step.at(reg);
  each_row(step, [&](std::size_t i) {
    float* const row = numbers.row(i);
    for (std::size_t k = 0; k < numbers.width; ++k) {
      row[k] *= factor;
      if (softcap > 0) row[k] = std::tanh(row[k] / softcap) * softcap;
    }
  });
}

void Select::run(Step& step) {
  const Rows source = step.at(from);
  const Rows target = step.at(to);
  Machine& machine = step.machine;
  for (std::size_t i = 0; i < step.wanted.size(); ++i) {
    const std::size_t row = step.wanted[i];
    if (row >= step.first && row < step.first + step.count) {
      std::memcpy(target.row(i), source.row(row - step.first), source.width * sizeof(float));
    } else {
      std::memset(target.row(i), 0, target.width * sizeof(float));
    }
  }
  if (step.shared_out && !step.wanted.empty()) {
    step.all_reduce(*machine.context, target.data, step.wanted.size() * target.width, Element::f32);
  }
  step.count = machine.cache.stripe().rank == 0 ? step.wanted.size() : 0;  // one rank of the context goes on
}

void Enter::run(Step& step) { pool->enter(part, step.timeout_seconds); }

void Leave::run(Step&) { pool->leave(); }

void Gather::run(Step& step) {
  const Rows source = step.at(from);
  const Rows target = step.at(to);
  const std::size_t ranks = widths.size();
  if (ranks == 1) {
    for (std::size_t i = 0; i < step.count; ++i) {
      std::memcpy(target.row(i), source.row(i), widths[0] * sizeof(float));
    }
    return;
  }
  const std::size_t part = *std::max_element(widths.begin(), widths.end());  // messages are of equal size
  const auto own = static_cast<std::size_t>(step.machine.group_rank);
  const bool root = own == 0;
  std::vector<float>& all = parts_;
  all.resize((root ? ranks + 1 : 1) * step.count * part);
  for (std::size_t i = 0; i < step.count; ++i) {
    std::memcpy(all.data() + i * part, source.row(i), widths[own] * sizeof(float));
  }
  if (step.count == 0) return;
  float* const joined = all.data() + step.count * part;
  Operation operation;
  operation.op = Op::gather;
  operation.dtype = Dtype::f32;
  operation.root = 0;
  operation.in = all.data();
  operation.out = root ? joined : nullptr;
  operation.count = step.count * part;
  step.run_in(*step.machine.group, operation);
  if (!root) return;
  std::size_t start = 0;
  for (std::size_t rank = 0; rank < ranks; start += widths[rank++]) {
    for (std::size_t i = 0; i < step.count; ++i) {
      std::memcpy(target.row(i) + start, joined + (rank * step.count + i) * part, widths[rank] * sizeof(float));
    }
  }
}

}  // namespace ferrule
