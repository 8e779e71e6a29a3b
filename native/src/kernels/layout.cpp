#include "kernels/layout.h"

#include <algorithm>

namespace ferrule {
namespace {

std::size_t rounded_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

std::size_t bytes_of_scale(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::f16:
    case ScaleKind::bf16:
      return 2;
    case ScaleKind::f32:
      return 4;
    case ScaleKind::e8m0:
    case ScaleKind::nested:
      return 1;
  }
  return 0;
}

}  // namespace

bool MatrixLayout::plain() const { return codes <= Codes::f32; }

bool MatrixLayout::small_integers() const { return codes >= Codes::integer && codes <= Codes::iq4nl; }

std::size_t MatrixLayout::padded_columns() const {
  if (plain()) return rounded_up(columns, 2);
  return rounded_up(columns, std::max(group, kSpan));
}

std::size_t MatrixLayout::block_bytes() const {
  if (plain()) return padded_columns() * kBlockRows * (codes == Codes::f32 ? 4 : 2);
  const Units units = units_of(*this);
  return units.count * units.bytes + units.count / units.per_super * units.super_bytes;
}

std::size_t MatrixLayout::blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }

std::size_t MatrixLayout::bytes() const { return blocks() * block_bytes(); }

Units units_of(const MatrixLayout& layout) {
  Units units;
  units.scale = layout.scale;
  units.offsets = layout.offsets;
  units.nested = layout.scale == ScaleKind::nested;
  units.columns = std::max(layout.group, kSpan);
  units.count = layout.padded_columns() / units.columns;
  units.spans = units.columns / kSpan;
  units.span_bytes = kBlockRows * kSpan * layout.bits / 8;
  units.scales = layout.group < kSpan ? kSpan / layout.group : 1;
  units.scale_bytes = bytes_of_scale(layout.scale) * kBlockRows;
  units.offset_start = units.scales * units.scale_bytes;
  if (layout.offsets == Offsets::numbers) units.offset_bytes = units.scale_bytes;
  if (layout.offsets == Offsets::zero_points) units.offset_bytes = kBlockRows;
  units.meta_bytes = units.offset_start + units.scales * units.offset_bytes;
  units.bytes = units.meta_bytes + units.spans * units.span_bytes;
  units.per_super = units.nested ? kSuper / units.columns : units.count;
  if (units.nested) units.super_bytes = 2 * kBlockRows * (layout.offsets == Offsets::numbers ? 2 : 1);
  return units;
}

const char* invalid(const MatrixLayout& layout) {
  constexpr std::size_t kMost = std::size_t{1} << 32;
  if (layout.rows == 0 || layout.columns == 0 || layout.rows > kMost || layout.columns > kMost) {
    return "a matrix has at least one row and column, and at most 2^32";
  }
  if (layout.codes > Codes::e5m2) return "no such kind of codes";
  if (layout.plain()) return nullptr;
  const bool table = layout.codes == Codes::fp4 || layout.codes == Codes::iq4nl || layout.codes == Codes::nf4;
  if (table && layout.bits != 4) return "codes that are looked up have 4 bits";
  if (layout.codes >= Codes::e4m3 && layout.bits != 8) return "codes that are floats have 8 bits";
  if (layout.bits < 2 || layout.bits > 8 || layout.bits == 7) return "codes have 2, 3, 4, 5, 6 or 8 bits";
  if (layout.scale > ScaleKind::nested) return "no such kind of scales";
  if (layout.group != 16 && (layout.group == 0 || layout.group % kSpan != 0)) {
    return "a group has 16 columns or a multiple of 32";
  }
  if (layout.offsets > Offsets::zero_points) return "no such kind of offsets";
  if (layout.scale == ScaleKind::nested && (layout.columns % kSuper != 0 || layout.group > kSpan)) {
    return "nested scales are of groups of 16 or 32 columns, and of 256 together";
  }
  if (layout.offsets == Offsets::zero_points && layout.codes != Codes::integer) return "zero points are of integers";
  if (layout.zero < 0 || layout.zero > 255 || (layout.zero != 0 && layout.codes != Codes::integer)) {
    return "a zero is a code of an integer";
  }
  return nullptr;
}

}  // namespace ferrule
