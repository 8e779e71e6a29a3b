// Codes of packed groups as vectors, for the instruction set that the including file is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/product.h"
#include "kernels/simd/simd.h"

namespace ferrule {
namespace {

constexpr std::size_t kAhead = 6144;  // bytes that are fetched ahead of use
#if defined(__AVX512F__)
constexpr std::size_t kCodesAtOnce = 6;  // activations of a tile: as many as have room in the registers
#elif defined(FERRULE_NEON)
constexpr std::size_t kCodesAtOnce = 4;  // only sums of a span have room; those of a row come and go once for each
#else
constexpr std::size_t kCodesAtOnce = 2;
#endif

template <std::size_t kBytes>
inline void fetch(const std::uint8_t* p) {
  for (std::size_t at = 0; at < kBytes; at += 64) __builtin_prefetch(p + kAhead + at);
}

inline F plain_scales(ScaleKind kind, const std::uint8_t* p) {
  if (kind == ScaleKind::f16) return load_f16(p);
  if (kind == ScaleKind::bf16) return load_bf16(p);
  if (kind == ScaleKind::f32) return load(reinterpret_cast<const float*>(p));
  return load_e8m0(p);
}

// Scale `which` of the unit at `unit`; `super`: what lies before the units of 256 columns, where scales are nested.
inline F scales_at(const Units& units, const std::uint8_t* unit, const std::uint8_t* super, std::size_t which) {
  const std::uint8_t* const at = unit + which * units.scale_bytes;
  if (units.nested) return load_f16(super) * load_i8(at);
  return plain_scales(units.scale, at);
}

// Offsets that are added to the numbers of a group, whose scale is `scale`.
inline F offsets_at(const Units& units, const std::uint8_t* unit, const std::uint8_t* super, std::size_t which,
                    F scale) {
  const std::uint8_t* const at = unit + units.offset_start + which * units.offset_bytes;
  if (units.offsets == Offsets::zero_points) return zero() - load_u8(at) * scale;
  if (units.nested) return load_f16(super + 2 * kBlockRows) * load_i8(at);
  return plain_scales(units.scale, at);
}

// The codes of quad kQuad of a span, a byte for each row and column.
template <int kBits, int kQuad>
inline U quad(const std::uint8_t* span) {
  constexpr int kLow = kBits == 3 ? 2 : kBits == 5 || kBits == 6 ? 4 : kBits;
  constexpr int kHigh = kBits - kLow;
  constexpr int kPer = 8 / kLow;  // quads in a vector of low bits
  constexpr int kShift = kLow * (kQuad % kPer);
  U codes = load_bytes(span + kQuad / kPer * 64);
  if constexpr (kShift != 0) codes = right<kShift>(codes);
  if constexpr (kLow != 8 && !(kByteShifts && kShift + kLow == 8)) codes = codes & bytes((1 << kLow) - 1);
  if constexpr (kHigh != 0) {
    constexpr int kPerHigh = 8 / kHigh;
    constexpr int kFrom = kHigh * (kQuad % kPerHigh);  // where its high bits are, and where they belong
    U high = load_bytes(span + 64 * kLow + kQuad / kPerHigh * 64);
    if constexpr (kFrom < kLow) high = left<kLow - kFrom>(high);
    if constexpr (kFrom > kLow) high = right<kFrom - kLow>(high);
    codes = codes | (high & bytes(((1 << kHigh) - 1) << kLow));
  }
  return codes;
}

template <int... kNumbers>
struct Numbers {};
using FirstQuads = Numbers<0, 1, 2, 3>;
using LastQuads = Numbers<4, 5, 6, 7>;

}  // namespace
}  // namespace ferrule
