#include "kernels/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "assertions.h"
#include "reduce/formats.h"

namespace ferrule {
namespace {

struct Planes {
  std::size_t low, high;  // bits
};

Planes planes_of(std::size_t bits) {
  const std::size_t low = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
  return {low, bits - low};
}

// Put the bits of a code of (row, column within its span) into a plane of `width` bits.
void put(std::uint8_t* plane, std::size_t width, std::size_t row, std::size_t column, unsigned bits) {
  const std::size_t quad = column / kQuad;
  const std::size_t per = 8 / width;
  plane[quad / per * 64 + row * kQuad + column % kQuad] |= static_cast<std::uint8_t>(bits << width * (quad % per));
}

void put_scale(ScaleKind kind, std::uint8_t* at, std::size_t row, float value) {
  switch (kind) {
    case ScaleKind::f16: {
      const std::uint16_t half = F16::store(value);
      std::memcpy(at + 2 * row, &half, 2);
      break;
    }
    case ScaleKind::bf16: {
      const std::uint16_t half = Bf16::store(value);
      std::memcpy(at + 2 * row, &half, 2);
      break;
    }
    case ScaleKind::f32:
      std::memcpy(at + 4 * row, &value, 4);
      break;
    case ScaleKind::e8m0: {  // a power of two is its exponent
      std::uint32_t bits;
      std::memcpy(&bits, &value, 4);
      at[row] = static_cast<std::uint8_t>(bits >> 23);
      break;
    }
    case ScaleKind::nested:  // put_multiple
      break;
  }
}

// How many times `by` a number is.
void put_multiple(std::uint8_t* at, std::size_t row, float value, float by) {
  at[row] = static_cast<std::uint8_t>(by == 0 ? 0 : std::lround(value / by));
}

void pack_block(const MatrixLayout& layout, const GroupedRows& given, std::size_t first, std::uint8_t* out) {
  const std::size_t rows = std::min(kBlockRows, given.rows - first);
  const std::size_t groups = (layout.columns + layout.group - 1) / layout.group;
  const std::size_t per_unit = layout.scales_per_unit();
  const auto [low, high] = planes_of(layout.bits);
  std::memset(out, 0, layout.block_bytes());
  const std::size_t supers = layout.columns / kSuper;
  for (std::size_t unit = 0; unit < layout.groups(); ++unit) {
    const std::size_t super = unit * layout.unit() / kSuper;
    if (layout.nested() && unit % layout.units_per_super() == 0) {
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t at = (first + row) * supers + super;
        put_scale(ScaleKind::f16, out, row, given.supers[at]);
        if (layout.offsets == Offsets::numbers) {
          put_scale(ScaleKind::f16, out + 2 * kBlockRows, row, given.super_offsets[at]);
        }
      }
      out += layout.super_bytes();
    }
    for (std::size_t which = 0; which < per_unit; ++which) {
      const std::size_t group = unit * per_unit + which;
      if (group >= groups) continue;
      std::uint8_t* const scale = out + which * layout.scale_bytes();
      std::uint8_t* const offset = out + layout.offset_start(which);
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t at = (first + row) * groups + group;
        if (layout.nested()) {
          const std::size_t nest = (first + row) * supers + super;
          put_multiple(scale, row, given.scales[at], given.supers[nest]);
          if (layout.offsets == Offsets::numbers) {
            put_multiple(offset, row, given.offsets[at], given.super_offsets[nest]);
          }
          continue;
        }
        put_scale(layout.scale, scale, row, given.scales[at]);
        if (layout.offsets == Offsets::numbers) put_scale(layout.scale, offset, row, given.offsets[at]);
        if (layout.offsets == Offsets::zero_points && given.scales[at] != 0) {
          offset[row] = static_cast<std::uint8_t>(std::lround(-given.offsets[at] / given.scales[at]));
        }
      }
    }
    std::uint8_t* span = out + layout.meta_bytes();
    for (std::size_t start = unit * layout.unit(); start < (unit + 1) * layout.unit(); start += kSpan) {
      const std::size_t length = start < layout.columns ? std::min(kSpan, layout.columns - start) : 0;
      for (std::size_t row = 0; row < rows; ++row) {
        const std::uint8_t* codes = given.codes + (first + row) * layout.columns + start;
        for (std::size_t k = 0; k < length; ++k) {
          put(span, low, row, k, codes[k] & ((1u << low) - 1));
          if (high != 0) put(span + 64 * low, high, row, k, codes[k] >> low);
        }
      }
      span += layout.span_bytes();
    }
    out = span;
  }
}

template <class T, std::size_t kPair>
void plain_block(const MatrixLayout& layout, std::size_t rows, const T* numbers, std::size_t stride, T* out) {
  const std::size_t columns = layout.padded_columns();
  for (std::size_t row = 0; row < kBlockRows; ++row) {
    for (std::size_t k = 0; k < columns; k += kPair) {
      for (std::size_t i = 0; i < kPair; ++i) {
        const bool there = row < rows && k + i < layout.columns;
        out[k * kBlockRows + row * kPair + i] = there ? numbers[row * stride + k + i] : T{};
      }
    }
  }
}

}  // namespace

void pack_groups(const MatrixLayout& layout, const GroupedRows& given, std::uint8_t* out) {
  FERRULE_ASSERT(given.first % kBlockRows == 0 && given.first + given.rows <= layout.rows);
  for (std::size_t row = 0; row < given.rows; row += kBlockRows) {
    pack_block(layout, given, row, out + (given.first + row) / kBlockRows * layout.block_bytes());
  }
}

void pack_plain(const MatrixLayout& layout, std::size_t first, std::size_t rows, const void* numbers,
                std::size_t stride, std::uint8_t* out) {
  FERRULE_ASSERT(first % kBlockRows == 0 && first + rows <= layout.rows);
  for (std::size_t row = 0; row < rows; row += kBlockRows) {
    const std::size_t some = std::min(kBlockRows, rows - row);
    std::uint8_t* const to = out + (first + row) / kBlockRows * layout.block_bytes();
    switch (layout.codes) {
      case Codes::f32:
        plain_block<std::uint32_t, 1>(layout, some, static_cast<const std::uint32_t*>(numbers) + row * stride, stride,
                                      reinterpret_cast<std::uint32_t*>(to));
        break;
      case Codes::f16:
        plain_block<std::uint16_t, 1>(layout, some, static_cast<const std::uint16_t*>(numbers) + row * stride, stride,
                                      reinterpret_cast<std::uint16_t*>(to));
        break;
      default:
        plain_block<std::uint16_t, 2>(layout, some, static_cast<const std::uint16_t*>(numbers) + row * stride, stride,
                                      reinterpret_cast<std::uint16_t*>(to));
    }
  }
}

}  // namespace ferrule
