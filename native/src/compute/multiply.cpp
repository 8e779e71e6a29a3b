#include "compute/multiply.h"

#include <algorithm>
#include <cstring>

#include "assertions.h"
#include "kernels/isa.h"

namespace ferrule {

#define FERRULE_DECLARE(name)                                                                                 \
  namespace name {                                                                                            \
  extern const ProductTable products;                                                                         \
  extern const SmallTable small_products;                                                                     \
  void exact(const PackedMatrix& matrix, const Activations& x, std::size_t first, std::size_t last, float* y, \
             std::size_t stride);                                                                             \
  }
FERRULE_EACH_ISA(FERRULE_DECLARE)
#undef FERRULE_DECLARE

namespace {

struct Kernels {
  const ProductTable& products;
  const SmallTable& small;
  ProductFunction exact;
};

const Kernels& kernels() {
  static const Kernels chosen = [] {
    switch (isa()) {
#define FERRULE_CASE(name) \
  case Isa::name:          \
    return Kernels{name::products, name::small_products, name::exact};
      FERRULE_EACH_ISA(FERRULE_CASE)
#undef FERRULE_CASE
      default:
        return Kernels{base::products, base::small_products, base::exact};
    }
  }();
  return chosen;
}

Form form_of(const MatrixLayout& layout, Precision precision) {
  if (layout.codes == Codes::bf16 && kernels().products.bf16_pairs) return Form::bf16;
  if (precision == Precision::fast && layout.small_integers()) return Form::int8;
  return Form::f32;
}

// Representation of zero where products take int8: a code, or the byte that is looked up.
std::int32_t zero_of(const MatrixLayout& layout) {
  const std::int32_t less = kernels().small.less;
  if (layout.codes != Codes::integer) return 128 - less;
  return layout.zero - (layout.bits == 8 ? less : 0);
}

constexpr std::size_t kWord = 4;  // bytes of an activation that lie together in a tile

std::size_t width_of(Form form) { return form == Form::f32 ? 4 : form == Form::bf16 ? 2 : 1; }

// Columns of activations for a matrix: whole spans.
std::size_t whole_spans(const MatrixLayout& layout) { return (layout.padded_columns() + kSpan - 1) / kSpan * kSpan; }

// Activations of the next tile, where `left` are left.
std::size_t next_tile(Form form, std::size_t left) {
  if (form == Form::f32) return 1;
  return form == Form::int8 ? tile_size(left, kernels().small.at_once)
                            : equal_tile_size(left, kernels().products.at_once);
}

ProductFunction function_of(const MatrixLayout& layout, Form form) {
  switch (layout.codes) {
    case Codes::bf16:
      return kernels().products.bf16;
    case Codes::f16:
      return kernels().products.f16;
    case Codes::f32:
      return kernels().products.f32;
    default:
      break;
  }
  if (form == Form::f32) return kernels().exact;
  return layout.codes == Codes::integer ? kernels().small.integers[layout.bits] : kernels().small.table;
}

}  // namespace

void Multiplier::begin(Converted& to, const Want& want, std::size_t count) {
  const std::size_t numbers = count * want.padded;
  const std::size_t spans = numbers / kSpan;
  if (to.values.size() < numbers * width_of(want.form)) to.values.resize(numbers * width_of(want.form));
  if (want.form == Form::int8 && to.scales.size() < spans) {
    to.scales.resize(spans);
    to.starts.resize(kSums * spans);
    to.sums.resize(kSums * spans);
  }
  to.want = want;
  to.ready = true;
  to.activations = {want.form,        count,         want.padded, to.values.data(), to.scales.data(),
                    to.starts.data(), to.sums.data()};
}

void Multiplier::convert(Converted& to, std::size_t first, std::size_t count, const float* x, std::size_t stride,
                         std::size_t columns) {
  const Want& want = to.want;
  const ConvertFunction function = kernels().products.convert[static_cast<std::size_t>(want.form)];
  const std::size_t spans = want.padded / kSpan;
  for (std::size_t i = 0; i < count; ++i) {
    // A tile begins at `first`; its activations lie side by side.
    std::uint8_t* const values = to.values.data() + first * want.padded * width_of(want.form) + i * kWord;
    const float* const from = x + (first + i) * stride;
    if (want.form != Form::int8) {
      function(from, columns, want.padded, {.values = values, .step = count});
      continue;
    }
    function(from, columns, want.padded,
             {values, count, to.scales.data() + first * spans + i, to.starts.data() + first * spans * kSums + i,
              to.sums.data() + first * spans * kSums + i, want.zero});
  }
}

const Activations& Multiplier::converted(const Want& want, const float* x, std::size_t count, std::size_t stride,
                                         std::size_t columns) {
  const auto same = [&](const Converted& each) { return each.ready && each.want == want; };
  if (const auto found = std::ranges::find_if(converted_, same); found != converted_.end()) return found->activations;
  auto& to = *std::ranges::find_if(converted_, [](const Converted& each) { return !each.ready; });
  begin(to, want, count);
  tiles_.clear();
  for (std::size_t first = 0; first < count; first += tiles_.back().count) {
    tiles_.push_back({first, next_tile(want.form, count - first)});
  }
  const auto some = [&](std::size_t from, std::size_t end) {
    for (std::size_t t = from; t < end; ++t) convert(to, tiles_[t].first, tiles_[t].count, x, stride, columns);
  };
  if (tiles_.size() > 1) {
    pool_.share(tiles_.size(), some);
  } else {
    some(0, tiles_.size());
  }
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

void Multiplier::multiply_each(std::span<const Factor> factors, std::span<const float* const> x, std::size_t count,
                               std::size_t stride, Precision precision) {
  FERRULE_ASSERT(factors.size() == x.size());
  if (count == 0) return;
  pool_.share(factors.size(), [&](std::size_t first, std::size_t last) {
    static thread_local Converted given;
    static thread_local std::vector<float> results;
    for (std::size_t f = first; f < last; ++f) {
      const Factor& factor = factors[f];
      const MatrixLayout& layout = factor.matrix.layout;
      FERRULE_ASSERT(factor.matrix.order == nullptr);
      const Form form = form_of(layout, precision);
      begin(given, {form, zero_of(layout), whole_spans(layout)}, count);
      for (std::size_t at = 0; at < count;) {
        const std::size_t some = next_tile(form, count - at);
        convert(given, at, some, x[f], stride, layout.columns);
        at += some;
      }
      const std::size_t width = layout.blocks() * kBlockRows;
      results.resize(count * width);
      function_of(layout, form)(factor.matrix, given.activations, 0, layout.blocks(), results.data(), width);
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(factor.y + i * factor.stride, results.data() + i * width, layout.rows * sizeof(float));
      }
    }
  });
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
  Piece pieces[kMostFactors];
  FERRULE_ASSERT(factors.size() <= std::size(pieces));
  std::size_t blocks = 0;
  const std::size_t columns = factors.front().matrix.layout.columns;
  std::size_t padded = 0;
  for (const Factor& factor : factors) {
    FERRULE_ASSERT(factor.matrix.layout.columns == columns);
    padded = std::max(padded, whole_spans(factor.matrix.layout));
  }
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const PackedMatrix& matrix = factors[i].matrix;
    const Form form = form_of(matrix.layout, precision);
    const Want want{form, form == Form::int8 ? zero_of(matrix.layout) : 0, padded};
    pieces[i] = {&factors[i], &converted(want, x, count, stride, columns), function_of(matrix.layout, form), blocks};
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
