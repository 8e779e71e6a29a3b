#include "kernels/pack/pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "assertions.h"
#include "reduce/formats.h"

namespace ferrule {
namespace {

using Quads = std::array<std::uint32_t, kSpan / kQuad>;  // a span of one row, a byte for each code

// Bits kFrom to kFrom + kWidth of the codes of a row, into its place in a plane.
template <std::size_t kFrom, std::size_t kWidth>
void put_plane(const Quads& quads, std::uint8_t* plane) {
  constexpr std::uint32_t kMask = 0x01010101U * ((1U << kWidth) - 1);
  for (std::size_t vector = 0; vector < kWidth; ++vector) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 8 / kWidth; ++i) {
      word |= (quads[vector * (8 / kWidth) + i] >> kFrom & kMask) << kWidth * i;
    }
    std::memcpy(plane + vector * 64, &word, kQuad);
  }
}

template <std::size_t kLow, std::size_t kHigh>
void put_row(const Quads& quads, std::size_t row, std::uint8_t* span) {
  put_plane<0, kLow>(quads, span + row * kQuad);
  if constexpr (kHigh != 0) put_plane<kLow, kHigh>(quads, span + 64 * kLow + row * kQuad);
}

// `length` codes of `rows` rows from `codes` on, into a span.
template <std::size_t kLow, std::size_t kHigh>
void put_span(const GroupedRows& given, const std::uint8_t* codes, std::size_t rows, std::size_t length,
              std::uint8_t* span) {
  std::array<Quads, kBlockRows> block{};
  auto* const bytes = reinterpret_cast<std::uint8_t*>(block.data());
  if (given.column_stride == 1 && length == kSpan) {
    for (std::size_t row = 0; row < rows; ++row) std::memcpy(&block[row], codes + row * given.row_stride, kSpan);
  } else {
    for (std::size_t k = 0; k < length; ++k) {
      const std::uint8_t* const column = codes + k * given.column_stride;
      for (std::size_t row = 0; row < rows; ++row) bytes[row * kSpan + k] = column[row * given.row_stride];
    }
  }
  for (std::size_t row = 0; row < rows; ++row) put_row<kLow, kHigh>(block[row], row, span);
}

using PutSpan = void (*)(const GroupedRows&, const std::uint8_t*, std::size_t, std::size_t, std::uint8_t*);

PutSpan put_span_of(std::size_t bits) {
  switch (bits) {
    case 2:
      return put_span<2, 0>;
    case 3:
      return put_span<2, 1>;
    case 4:
      return put_span<4, 0>;
    case 5:
      return put_span<4, 1>;
    case 6:
      return put_span<4, 2>;
    default:
      return put_span<8, 0>;
  }
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
    case ScaleKind::nested:  // multiple
      break;
  }
}

// `value` in multiples of `by`: -128 to 255, but for what is lost in rounding. The sum's last bits are that whole
// number.
std::uint8_t multiple(float value, float by) {
  return by == 0 ? 0 : static_cast<std::uint8_t>(bits<std::uint32_t>(value / by + 12582912.0F));
}

void pack_block(const MatrixLayout& layout, const GroupedRows& given, std::size_t first, std::uint8_t* out) {
  const std::size_t rows = std::min(kBlockRows, given.rows - first);
  const std::size_t groups = (layout.columns + layout.group - 1) / layout.group;
  const Units units = units_of(layout);
  const PutSpan put = put_span_of(layout.bits);
  const std::size_t supers = layout.columns / kSuper;
  for (std::size_t unit = 0; unit < units.count; ++unit) {
    const std::size_t super = unit * units.columns / kSuper;
    if (units.nested && unit % units.per_super == 0) {
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t at = (first + row) * supers + super;
        put_scale(ScaleKind::f16, out, row, given.supers[at]);
        if (layout.offsets == Offsets::numbers) {
          put_scale(ScaleKind::f16, out + 2 * kBlockRows, row, given.super_offsets[at]);
        }
      }
      out += units.super_bytes;
    }
    for (std::size_t which = 0; which < units.scales; ++which) {
      const std::size_t group = unit * units.scales + which;
      if (group >= groups) continue;
      std::uint8_t* const scale = out + which * units.scale_bytes;
      std::uint8_t* const offset = out + units.offset_start + which * units.offset_bytes;
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t at = (first + row) * groups + group;
        if (units.nested) {
          const std::size_t nest = (first + row) * supers + super;
          scale[row] = multiple(given.scales[at], given.supers[nest]);
          if (layout.offsets == Offsets::numbers) {
            offset[row] = multiple(given.offsets[at], given.super_offsets[nest]);
          }
          continue;
        }
        put_scale(layout.scale, scale, row, given.scales[at]);
        if (layout.offsets == Offsets::numbers) put_scale(layout.scale, offset, row, given.offsets[at]);
        if (layout.offsets == Offsets::zero_points) offset[row] = multiple(-given.offsets[at], given.scales[at]);
      }
    }
    std::uint8_t* span = out + units.meta_bytes;
    for (std::size_t start = unit * units.columns; start < (unit + 1) * units.columns; start += kSpan) {
      const std::size_t length = start < layout.columns ? std::min(kSpan, layout.columns - start) : 0;
      const std::uint8_t* const codes = given.codes + first * given.row_stride + start * given.column_stride;
      if (length != 0) put(given, codes, rows, length, span);
      span += units.span_bytes;
    }
    out = span;
  }
}

// Some columns at a time of all rows, whose numbers of one column would push each other out of the cache: they often
// lie powers of two apart.
template <class T, std::size_t kPair>
void plain_block(const MatrixLayout& layout, std::size_t rows, const T* numbers, std::size_t stride, T* out) {
  constexpr std::size_t kTile = 64 / sizeof(T);
  T tile[kBlockRows][kTile] = {};
  for (std::size_t first = 0; first < layout.columns; first += kTile) {
    const std::size_t length = std::min(kTile, layout.columns - first);
    if (length < kTile) std::memset(tile, 0, sizeof tile);
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(tile[row], numbers + row * stride + first, length * sizeof(T));
    }
    for (std::size_t k = 0; k < length; k += kPair) {
      for (std::size_t row = 0; row < kBlockRows; ++row) {
        std::memcpy(out + (first + k) * kBlockRows + row * kPair, tile[row] + k, kPair * sizeof(T));
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
