// Numbers as 8-bit integers with a scale per block of them.
//
// A block's scale is its largest magnitude / 127, so a number is off by at most 1/254 of that. Blocks that hold an
// infinity or a NaN come back as NaN throughout.
#pragma once

#include <cstddef>

#include "operation.h"

namespace ferrule {

constexpr std::size_t kQuantBlock = 128;  // numbers that share a scale

// Bytes that `elements` take: per block a scale (f32), then its integers.
constexpr std::size_t quantized_bytes(std::size_t elements) {
  return (elements + kQuantBlock - 1) / kQuantBlock * sizeof(float) + elements;
}

// To and from f32, for the types that can be quantized.
void widen(Dtype dtype, const std::byte* from, float* to, std::size_t elements);
void narrow(Dtype dtype, const float* from, std::byte* to, std::size_t elements);

void quantize(const float* from, std::byte* to, std::size_t elements);
// to[i] = the number, or to[i] += it.
void dequantize(const std::byte* from, float* to, std::size_t elements, bool add);

}  // namespace ferrule
