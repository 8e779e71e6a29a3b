#include "reduce/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "reduce/formats.h"

namespace ferrule {
namespace {

template <class Format>
void widen_as(const std::byte* from, float* to, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) {
    typename Format::Raw raw;
    std::memcpy(&raw, from + i * sizeof raw, sizeof raw);
    to[i] = Format::load(raw);
  }
}

template <class Format>
void narrow_as(const float* from, std::byte* to, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) {
    const typename Format::Raw raw = Format::store(from[i]);
    std::memcpy(to + i * sizeof raw, &raw, sizeof raw);
  }
}

float largest(const float* from, std::size_t n) {
  float most = 0;
  bool finite = true;
  for (std::size_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(from[i]);
    finite &= magnitude <= std::numeric_limits<float>::max();  // false for NaN, too
    most = magnitude > most ? magnitude : most;
  }
  return finite ? most : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

void widen(Dtype dtype, const std::byte* from, float* to, std::size_t elements) {
  if (dtype == Dtype::f32) {
    std::memcpy(to, from, elements * sizeof(float));
  } else if (dtype == Dtype::bf16) {
    widen_as<Bf16>(from, to, elements);
  } else {
    widen_as<F16>(from, to, elements);
  }
}

void narrow(Dtype dtype, const float* from, std::byte* to, std::size_t elements) {
  if (dtype == Dtype::f32) {
    std::memcpy(to, from, elements * sizeof(float));
  } else if (dtype == Dtype::bf16) {
    narrow_as<Bf16>(from, to, elements);
  } else {
    narrow_as<F16>(from, to, elements);
  }
}

void quantize(const float* from, std::byte* to, std::size_t elements) {
  for (std::size_t at = 0; at < elements; at += kQuantBlock) {
    const std::size_t n = std::min(kQuantBlock, elements - at);
    const float scale = largest(from + at, n) / 127.0F;
    std::memcpy(to, &scale, sizeof scale);
    to += sizeof scale;
    // A scale that is subnormal loses its inverse; so few bits are not worth more than zero.
    const float inverse = scale >= std::numeric_limits<float>::min() ? 1.0F / scale : 0.0F;
    auto* const out = reinterpret_cast<std::int8_t*>(to);
    for (std::size_t i = 0; i < n; ++i) {
      const float scaled = from[at + i] * inverse;
      const float bounded = scaled > 127.0F ? 127.0F : (scaled > -127.0F ? scaled : -127.0F);
      out[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(bounded + (bounded < 0 ? -0.5F : 0.5F)));
    }
    to += n;
  }
}

void dequantize(const std::byte* from, float* to, std::size_t elements, bool add) {
  for (std::size_t at = 0; at < elements; at += kQuantBlock) {
    const std::size_t n = std::min(kQuantBlock, elements - at);
    float scale;
    std::memcpy(&scale, from, sizeof scale);
    from += sizeof scale;
    const auto* const in = reinterpret_cast<const std::int8_t*>(from);
    for (std::size_t i = 0; i < n; ++i) {
      const float value = static_cast<float>(in[i]) * scale;
      to[at + i] = add ? to[at + i] + value : value;
    }
    from += n;
  }
}

}  // namespace ferrule
