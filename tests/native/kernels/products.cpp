// Products of every layout of matrices, against sums in double precision over the numbers that read_row gives.
#include <algorithm>

#include "compute/multiply.h"
#include "kernels/instructions.h"
#include "kernels/numbers.h"
#include "kernels/pack/pack.h"

#include "reduce/formats.h"

namespace {

using ferrule::Codes;
using ferrule::kSpan;
using ferrule::kSuper;
using ferrule::MatrixLayout;
using ferrule::Offsets;
using ferrule::Precision;
using ferrule::ScaleKind;
using testing::below;
using testing::kEpsilon;

constexpr std::size_t kCounts[] = {1, 2, 3, 5, 7};
constexpr std::size_t kMost = 13;  // activations: more than any tile has

struct Packed {
  MatrixLayout layout;
  std::vector<std::uint8_t> data;
  std::vector<float> offsets;  // of each number

  ferrule::PackedMatrix matrix() const { return {layout, data.data(), nullptr}; }
};

// Scales that every kind holds: powers of two, of either sign where a kind has one; or whole multiples of such.
Packed random_groups(MatrixLayout layout) {
  const std::size_t rows = layout.rows;
  const std::size_t columns = layout.columns;
  if (layout.group == 0) layout.group = (columns + kSpan - 1) / kSpan * kSpan;
  CHECK(ferrule::invalid(layout) == nullptr);
  const std::size_t groups = (columns + layout.group - 1) / layout.group;
  const std::size_t supers = columns / kSuper;
  const auto power = [] { return std::ldexp(1.0F, -static_cast<int>(below(6))); };
  const auto sign = [] { return below(2) == 0 ? 1.0F : -1.0F; };
  const bool signs = layout.scale != ScaleKind::e8m0;
  std::vector<std::uint8_t> codes(rows * columns);
  for (auto& each : codes) each = static_cast<std::uint8_t>(below(1U << layout.bits));
  std::vector<float> super(rows * supers), super_offset(rows * supers);
  for (float& each : super) each = power();
  for (float& each : super_offset) each = power();
  std::vector<float> scales(rows * groups), offsets(rows * groups);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const std::size_t at = i / groups * supers + i % groups * layout.group / kSuper;
    const bool nested = layout.scale == ScaleKind::nested;
    const auto multiple = [] { return static_cast<float>(below(256)) - 128.0F; };
    scales[i] = nested ? multiple() * super[at] : power() * (signs ? sign() : 1.0F);
    if (layout.offsets == Offsets::zero_points) offsets[i] = -scales[i] * static_cast<float>(below(1U << layout.bits));
    if (layout.offsets == Offsets::numbers) {
      offsets[i] = nested ? multiple() * super_offset[at] : 4 * power() * (signs ? sign() : 1.0F);
    }
  }
  Packed packed{layout, std::vector<std::uint8_t>(layout.bytes()), std::vector<float>(rows * columns)};
  ferrule::pack_groups(
      layout, {0, rows, codes.data(), columns, 1, scales.data(), offsets.data(), super.data(), super_offset.data()},
      packed.data.data());
  for (std::size_t i = 0; i < rows * columns; ++i) {
    packed.offsets[i] = offsets[i / columns * groups + i % columns / layout.group];
  }
  return packed;
}

Packed random_numbers(Codes codes, std::size_t rows, std::size_t columns) {
  const MatrixLayout layout{.rows = rows, .columns = columns, .codes = codes};
  Packed packed{layout, std::vector<std::uint8_t>(layout.bytes()), std::vector<float>(rows * columns)};
  const std::vector<float> numbers = testing::normal(rows * columns);
  std::vector<std::uint16_t> halves(rows * columns);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = codes == Codes::bf16 ? ferrule::Bf16::store(numbers[i]) : ferrule::F16::store(numbers[i]);
  }
  const void* from = codes == Codes::f32 ? static_cast<const void*>(numbers.data()) : halves.data();
  ferrule::pack_plain(layout, 0, rows, from, columns, packed.data.data());
  return packed;
}

// Activations as products take them: rounded to bfloat16, or to 127 steps of the largest in each span.
std::vector<float> rounded(std::vector<float> x, std::size_t columns, const MatrixLayout& layout, bool small) {
  if (layout.codes == Codes::bf16 && testing::bf16_pairs()) {
    for (float& each : x) each = testing::to_bf16(each);
  }
  if (!small) return x;
  for (std::size_t start = 0; start < x.size(); start += columns) {
    for (std::size_t k = 0; k < columns; k += kSpan) {
      float* const span = x.data() + start + k;
      float* const end = span + std::min(kSpan, columns - k);
      float top = 0;
      for (const float* each = span; each != end; ++each) top = std::max(top, std::abs(*each));
      const float inverse = 127.0F / top;
      for (float* each = span; each != end; ++each) *each = std::nearbyint(*each * inverse) * (top / 127.0F);
    }
  }
  return x;
}

void check(const Packed& packed, Precision precision, const std::string& what) {
  static ferrule::Pool pool(1);
  static ferrule::Multiplier multiplier(pool);
  const MatrixLayout& layout = packed.layout;
  const std::size_t rows = layout.rows;
  const std::size_t columns = layout.columns;
  const std::size_t stride = layout.blocks() * ferrule::kBlockRows;
  const std::vector<float> x = testing::normal(kMost * columns);
  const auto product = [&](std::size_t count) {
    std::vector<float> y(count * stride, NAN);
    const ferrule::Factor factor{packed.matrix(), y.data(), stride};
    multiplier.multiply({&factor, 1}, x.data(), count, columns, precision);
    return y;
  };
  const std::vector<float> found = product(kMost);
  for (const std::size_t count : kCounts) {  // what else is in a batch changes no bit
    const std::vector<float> fewer = product(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = i * stride;
      CHECK(std::memcmp(fewer.data() + at, found.data() + at, rows * sizeof(float)) == 0);
    }
  }
  const bool small = precision == Precision::fast && layout.small_integers();
  const std::vector<float> taken = rounded(x, columns, layout, small);
  std::vector<float> numbers(columns);
  // Each product and sum is rounded once, or (pairs of bfloat16) to either side.
  const double roundings = (static_cast<double>(columns) + 8) * (testing::bf16_pairs() ? 2 : 1);
  for (std::size_t row = 0; row < rows; ++row) {
    ferrule::read_row(packed.matrix(), row, numbers.data());
    const float* const offsets = packed.offsets.data() + row * columns;
    for (std::size_t i = 0; i < kMost; ++i) {
      double wanted = 0;
      double size = 0;
      for (std::size_t k = 0; k < columns; ++k) {
        const double by = taken[i * columns + k];
        wanted += numbers[k] * by;
        size += (std::abs(numbers[k] - offsets[k]) + std::abs(offsets[k])) * std::abs(by);
      }
      testing::near(found[i * stride + row], wanted, roundings * kEpsilon * size,
                    what + ", row " + std::to_string(row) + " of activation " + std::to_string(i));
    }
  }
}

void check_groups() {
  struct Kind {
    Codes codes;
    std::uint8_t bits;
  };
  constexpr Kind kKinds[] = {{Codes::integer, 2}, {Codes::integer, 3}, {Codes::integer, 4}, {Codes::integer, 5},
                             {Codes::integer, 6}, {Codes::integer, 8}, {Codes::fp4, 4},     {Codes::iq4nl, 4},
                             {Codes::nf4, 4},     {Codes::e4m3, 8},    {Codes::e5m2, 8}};
  constexpr ScaleKind kScales[] = {ScaleKind::f16, ScaleKind::bf16, ScaleKind::f32, ScaleKind::e8m0, ScaleKind::nested};
  constexpr Offsets kOffsets[] = {Offsets::none, Offsets::numbers, Offsets::zero_points};
  constexpr std::size_t kGroups[] = {16, 32, 64, 0};  // 0: the whole row
  std::size_t cases = 0;
  for (const auto& [codes, bits] : kKinds) {
    for (const ScaleKind scale : kScales) {
      for (const Offsets offsets : kOffsets) {
        if (offsets == Offsets::zero_points && codes != Codes::integer) continue;
        for (const std::size_t group : kGroups) {
          const bool nested = scale == ScaleKind::nested;
          if (nested && group != 16 && group != 32) continue;
          MatrixLayout layout{.codes = codes, .bits = bits, .scale = scale, .offsets = offsets, .group = group};
          // Rows and columns that fill blocks and spans, or do not; several blocks, or one.
          constexpr std::size_t kRows[] = {33, 16, 50, 7};
          constexpr std::size_t kColumns[] = {101, 64, 131, 37};
          layout.rows = kRows[cases % 4];
          layout.columns = nested ? kSuper * (1 + cases % 2) : kColumns[cases / 4 % 4];
          if (codes == Codes::integer) layout.zero = cases % 3 == 0 ? 0 : 1 << (bits - 1);
          ++cases;
          const Packed packed = random_groups(layout);
          const std::string what = "codes " + std::to_string(static_cast<int>(codes)) + " of " + std::to_string(bits) +
                                   " bits, scales " + std::to_string(static_cast<int>(scale)) + ", offsets " +
                                   std::to_string(static_cast<int>(offsets)) + ", groups of " + std::to_string(group) +
                                   ", " + std::to_string(layout.rows) + " x " + std::to_string(layout.columns);
          check(packed, Precision::exact, what + ", exact");
          if (layout.small_integers()) check(packed, Precision::fast, what + ", int8");
        }
      }
    }
  }
}

void check_plain() {
  for (const Codes codes : {Codes::bf16, Codes::f16, Codes::f32}) {
    for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{33, 101}, {16, 64}, {50, 7}, {1, 1}}) {
      const std::string what = "numbers " + std::to_string(static_cast<int>(codes)) + ", " + std::to_string(rows) +
                               " x " + std::to_string(columns);
      check(random_numbers(codes, rows, columns), Precision::exact, what);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  testing::choose_instructions(count, arguments);
  check_groups();
  check_plain();
}
