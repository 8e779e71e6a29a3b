#include "compute/multiply.h"

#include <algorithm>

#include "assertions.h"
#include "kernels/isa.h"

namespace ferrule {

#define FERRULE_DECLARE(name)         \
  namespace name {                    \
  extern const ProductTable products; \
  }
FERRULE_EACH_ISA(FERRULE_DECLARE)
#undef FERRULE_DECLARE

namespace {

const ProductTable& products() {
  switch (isa()) {
#define FERRULE_CASE(name) \
  case Isa::name:          \
    return name::products;
    FERRULE_EACH_ISA(FERRULE_CASE)
#undef FERRULE_CASE
    default:
      return base::products;
  }
}

Form form_of(const MatrixLayout& layout, Precision precision) {
  if (layout.codes == Codes::bf16 && products().bf16_pairs) return Form::bf16;
  if (precision == Precision::fast && layout.small_integers()) return Form::int8;
  return Form::f32;
}

ProductFunction function_of(const MatrixLayout& layout, Form form) {
  switch (layout.codes) {
    case Codes::bf16:
      return products().bf16;
    case Codes::f16:
      return products().f16;
    case Codes::f32:
      return products().f32;
    default:
      break;
  }
  if (form == Form::f32) return products().exact;
  return layout.codes == Codes::integer ? products().small[layout.bits] : products().table_small;
}

}  // namespace

const Activations& Multiplier::converted(Form form, const float* x, std::size_t count, std::size_t stride,
                                         std::size_t columns, std::size_t padded) {
  Converted& to = converted_[static_cast<std::size_t>(form)];
  if (to.ready) return to.activations;
  const std::size_t width = form == Form::f32 ? 4 : form == Form::bf16 ? 2 : 1;
  const std::size_t spans = padded / kSpan;
  if (to.values.size() < count * padded * width) to.values.resize(count * padded * width);
  if (form == Form::int8 && to.scales.size() < count * spans) {
    to.scales.resize(count * spans);
    to.sums.resize(kSums * count * spans);
  }
  const ConvertFunction convert = products().convert[static_cast<std::size_t>(form)];
  const auto rows = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      convert(x + i * stride, columns, padded, to.values.data() + i * padded * width, to.scales.data() + i * spans,
              to.sums.data() + kSums * i * spans);
    }
  };
  if (count > 1) {
    pool_.share(count, rows);
  } else {
    rows(0, count);
  }
  to.activations = {form, count, padded, to.values.data(), to.scales.data(), to.sums.data()};
  to.ready = true;
  return to.activations;
}

void Multiplier::multiply(std::span<const Factor> factors, const float* x, std::size_t count, std::size_t stride,
                          Precision precision) {
  if (count == 0 || factors.empty()) return;
  if (std::ranges::none_of(factors, [](const Factor& factor) { return factor.matrix.order != nullptr; })) {
    return multiply_together(factors, x, count, stride, precision);
  }
  for (const Factor& factor : factors) multiply_ordered(factor, x, count, stride, precision);
}

void Multiplier::multiply_ordered(const Factor& factor, const float* x, std::size_t count, std::size_t stride,
                                  Precision precision) {
  const std::int32_t* const order = factor.matrix.order;
  if (order == nullptr) return multiply_together({&factor, 1}, x, count, stride, precision);
  const std::size_t columns = factor.matrix.layout.columns;
  ordered_.resize(count * columns);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < columns; ++k) {
      ordered_[i * columns + k] = order[k] < 0 ? 0 : x[i * stride + static_cast<std::size_t>(order[k])];
    }
  }
  multiply_together({&factor, 1}, ordered_.data(), count, columns, precision);
}

void Multiplier::multiply_together(std::span<const Factor> factors, const float* x, std::size_t count,
                                   std::size_t stride, Precision precision) {
  for (Converted& each : converted_) each.ready = false;
  struct Piece {
    const Factor* factor;
    const Activations* x;
    ProductFunction run;
    std::size_t first;  // block, over all factors
  };
  Piece pieces[8];
  FERRULE_ASSERT(factors.size() <= std::size(pieces));
  std::size_t blocks = 0;
  const std::size_t columns = factors.front().matrix.layout.columns;
  std::size_t padded = 0;
  for (const Factor& factor : factors) {
    FERRULE_ASSERT(factor.matrix.layout.columns == columns);
    padded = std::max(padded, (factor.matrix.layout.padded_columns() + kSpan - 1) / kSpan * kSpan);
  }
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const PackedMatrix& matrix = factors[i].matrix;
    const Form form = form_of(matrix.layout, precision);
    pieces[i] = {&factors[i], &converted(form, x, count, stride, columns, padded), function_of(matrix.layout, form),
                 blocks};
    blocks += matrix.layout.blocks();
  }
  pool_.share(blocks, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const Piece& piece = pieces[i];
      const std::size_t end = piece.first + piece.factor->matrix.layout.blocks();
      const std::size_t from = std::max(first, piece.first);
      const std::size_t to = std::min(last, end);
      if (from >= to) continue;
      piece.run(piece.factor->matrix, *piece.x, from - piece.first, to - piece.first, piece.factor->y,
                piece.factor->stride);
    }
  });
}

}  // namespace ferrule
