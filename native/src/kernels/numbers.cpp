#include "kernels/numbers.h"

#include <cstring>

#include "reduce/formats.h"

namespace ferrule {
namespace {

float scale_at(ScaleKind kind, const std::uint8_t* at, std::size_t row) {
  std::uint16_t half;
  std::uint32_t word = 0;
  switch (kind) {
    case ScaleKind::f16:
      std::memcpy(&half, at + 2 * row, 2);
      return F16::load(half);
    case ScaleKind::bf16:
      std::memcpy(&half, at + 2 * row, 2);
      return Bf16::load(half);
    case ScaleKind::f32:
      std::memcpy(&word, at + 4 * row, 4);
      return bits<float>(word);
    case ScaleKind::e8m0:
      return bits<float>(static_cast<std::uint32_t>(at[row]) << 23);
    case ScaleKind::nested:  // a number of two places
      break;
  }
  return 0;
}

unsigned bits_at(const std::uint8_t* plane, std::size_t width, std::size_t row, std::size_t column) {
  const std::size_t quad = column / kQuad;
  const std::size_t per = 8 / width;
  return plane[quad / per * 64 + row * kQuad + column % kQuad] >> width * (quad % per) & ((1u << width) - 1);
}

float float8(unsigned code, int mantissa, float up) {
  const float magnitude = bits<float>((code & 0x7fu) << (23 - mantissa)) * up;
  return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

float value_of(const MatrixLayout& layout, unsigned code) {
  static constexpr float kFp4[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  static constexpr float kIq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  static constexpr float kNf4[16] = {
      -1.0F,        -0.69619280F, -0.52507305F, -0.39491749F, -0.28444138F, -0.18477343F, -0.091050036F, 0.0F,
      0.079580300F, 0.16093020F,  0.24611230F,  0.33791524F,  0.44070983F,  0.56261700F,  0.72295684F,   1.0F};
  switch (layout.codes) {
    case Codes::fp4:
      return (code & 8u) != 0 ? -kFp4[code & 7u] : kFp4[code];
    case Codes::iq4nl:
      return kIq4nl[code];
    case Codes::nf4:
      return kNf4[code];
    case Codes::e4m3:
      return float8(code, 3, 0x1p120F);
    case Codes::e5m2:
      return float8(code, 2, 0x1p112F);
    default:
      return static_cast<float>(static_cast<std::int32_t>(code) - layout.zero);
  }
}

}  // namespace

void read_row(const PackedMatrix& matrix, std::size_t row, float* out) {
  const MatrixLayout& layout = matrix.layout;
  const std::uint8_t* at = matrix.data + row / kBlockRows * layout.block_bytes();
  const std::size_t lane = row % kBlockRows;
  if (layout.plain()) {
    for (std::size_t k = 0; k < layout.columns; ++k) {
      if (layout.codes == Codes::f32) {
        std::memcpy(out + k, at + (k * kBlockRows + lane) * 4, 4);
        continue;
      }
      const bool paired = layout.codes == Codes::bf16;
      const std::size_t place = paired ? k / 2 * 2 * kBlockRows + lane * 2 + k % 2 : k * kBlockRows + lane;
      std::uint16_t half;
      std::memcpy(&half, at + place * 2, 2);
      out[k] = paired ? Bf16::load(half) : F16::load(half);
    }
    return;
  }
  const std::size_t low = layout.bits == 3 ? 2 : layout.bits == 5 || layout.bits == 6 ? 4 : layout.bits;
  const std::size_t high = layout.bits - low;
  const Units units = units_of(layout);
  const auto number_at = [&](const std::uint8_t* place, const std::uint8_t* super) {
    if (!units.nested) return scale_at(layout.scale, place, lane);
    return scale_at(ScaleKind::f16, super, lane) * static_cast<float>(static_cast<std::int8_t>(place[lane]));
  };
  for (std::size_t k = 0; k < layout.columns; ++k) {
    const std::size_t count = k / units.columns;
    const std::uint8_t* const super =
        at + count / units.per_super * (units.super_bytes + units.per_super * units.bytes);
    const std::uint8_t* const unit = super + units.super_bytes + count % units.per_super * units.bytes;
    const std::size_t within = k % units.columns;
    const std::size_t which = units.scales == 2 ? within / layout.group : 0;
    const std::uint8_t* const span = unit + units.meta_bytes + within / kSpan * units.span_bytes;
    unsigned code = bits_at(span, low, lane, within % kSpan);
    if (high != 0) code |= bits_at(span + 64 * low, high, lane, within % kSpan) << low;
    const float scale = number_at(unit + which * units.scale_bytes, super);
    out[k] = value_of(layout, code) * scale;
    const std::uint8_t* const offset = unit + units.offset_start + which * units.offset_bytes;
    if (layout.offsets == Offsets::numbers) out[k] += number_at(offset, super + 2 * kBlockRows);
    if (layout.offsets == Offsets::zero_points) out[k] -= scale * static_cast<float>(offset[lane]);
  }
}

}  // namespace ferrule
