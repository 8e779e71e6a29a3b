#include "kernels/layout.h"

namespace ferrule {
namespace {

std::size_t rounded_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

std::size_t MatrixLayout::padded_columns() const {
  if (plain()) return rounded_up(columns, 2);
  return rounded_up(columns, unit());
}

std::size_t MatrixLayout::scale_bytes() const {
  switch (scale) {
    case ScaleKind::f16:
    case ScaleKind::bf16:
      return 2 * kBlockRows;
    case ScaleKind::f32:
      return 4 * kBlockRows;
    case ScaleKind::e8m0:
    case ScaleKind::nested:
      return kBlockRows;
  }
  return 0;
}

std::size_t MatrixLayout::block_bytes() const {
  if (plain()) return padded_columns() * kBlockRows * (codes == Codes::f32 ? 4 : 2);
  return groups() * unit_bytes() + groups() / units_per_super() * super_bytes();
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
  if (layout.nested() && (layout.columns % kSuper != 0 || layout.group > kSpan)) {
    return "nested scales are of groups of 16 or 32 columns, and of 256 together";
  }
  if (layout.zero < 0 || layout.zero > 255 || (layout.zero != 0 && layout.codes != Codes::integer)) {
    return "a zero is a code of an integer";
  }
  return nullptr;
}

}  // namespace ferrule
