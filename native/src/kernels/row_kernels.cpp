// Loops over rows of activations. CMake compiles this file several times, with FERRULE_ISA naming the instruction set.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/rows.h"
#include "kernels/simd/simd.h"

namespace ferrule {
namespace FERRULE_ISA {
void attend(const AttentionTile& tile);  // attention_kernels.cpp
}
namespace {

// body(i, n) for n = 16 lanes at a time; the rest, fewer than 16, over copies that are filled up with zeros.
F load_some(const float* p, std::size_t n) {
  if (n >= 16) return load(p);
  float some[16] = {};
  std::memcpy(some, p, n * sizeof(float));
  return load(some);
}

void store_some(float* p, F x, std::size_t n) {
  if (n >= 16) return store(p, x);
  float some[16];
  store(some, x);
  std::memcpy(p, some, n * sizeof(float));
}

void norm(const float* x, std::size_t n, const float* weight, const float* bias, float eps, bool mean, float* y) {
  float middle = 0;
  if (mean) {
    F all = zero();
    for (std::size_t i = 0; i < n; i += 16) all = all + load_some(x + i, n - i);
    middle = sum(all) / static_cast<float>(n);
  }
  F squares = zero();
  for (std::size_t i = 0; i < n; i += 16) {
    F v = load_some(x + i, n - i);
    if (mean) {
      v = v - set1(middle);
      if (n - i < 16) {  // the lanes beyond the end count for nothing
        float some[16] = {}, all[16];
        store(all, v);
        std::memcpy(some, all, (n - i) * sizeof(float));
        v = load(some);
      }
    }
    squares = fma(v, v, squares);
  }
  const F by = set1(1.0F / std::sqrt(sum(squares) / static_cast<float>(n) + eps));
  for (std::size_t i = 0; i < n; i += 16) {
    F v = (load_some(x + i, n - i) - set1(middle)) * by;
    if (weight != nullptr) v = v * load_some(weight + i, n - i);
    if (bias != nullptr) v = v + load_some(bias + i, n - i);
    store_some(y + i, v, n - i);
  }
}

F gelu_tanh(F x) {
  const F inner = set1(0.7978845608F) * fma(set1(0.044715F) * x, x * x, x);
  return set1(0.5F) * x * (set1(1.0F) + tanh(inner));
}

F gelu(F x) {
  float lanes[16];
  store(lanes, x);
  for (float& each : lanes) each = 0.5F * each * (1.0F + std::erf(each * 0.70710678F));
  return load(lanes);
}

template <class Function>
void gate_by(const float* gate, const float* up, std::size_t n, float* y, Function&& function) {
  for (std::size_t i = 0; i < n; i += 16) {
    F v = function(load_some(gate + i, n - i));
    if (up != nullptr) v = v * load_some(up + i, n - i);
    store_some(y + i, v, n - i);
  }
}

void gate(Activation kind, const float* from, const float* up, std::size_t n, float* y) {
  switch (kind) {
    case Activation::silu:
      return gate_by(from, up, n, y, [](F x) { return x * sigmoid(x); });
    case Activation::gelu:
      return gate_by(from, up, n, y, [](F x) { return gelu(x); });
    case Activation::gelu_tanh:
      return gate_by(from, up, n, y, [](F x) { return gelu_tanh(x); });
    case Activation::relu:
      return gate_by(from, up, n, y, [](F x) { return max(x, zero()); });
    case Activation::gpt_oss:  // gate bounded above, up on both sides: (up + 1) * gate * sigmoid(1.702 gate)
      for (std::size_t i = 0; i < n; i += 16) {
        const F g = min(load_some(from + i, n - i), set1(7.0F));
        const F u = min(max(load_some(up + i, n - i), set1(-7.0F)), set1(7.0F));
        store_some(y + i, (u + set1(1.0F)) * g * sigmoid(g * set1(1.702F)), n - i);
      }
  }
}

void rotate(float* x, std::size_t half, const float* cos, const float* sin, bool interleaved) {
  if (interleaved) {
    for (std::size_t i = 0; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  std::size_t i = 0;
  for (; i + 16 <= half; i += 16) {
    const F a = load(x + i);
    const F b = load(x + half + i);
    const F c = load(cos + i);
    const F s = load(sin + i);
    store(x + i, a * c - b * s);
    store(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

void add(float* y, const float* x, std::size_t n, float factor) {
  const F by = set1(factor);
  for (std::size_t i = 0; i < n; i += 16) {
    store_some(y + i, fma(load_some(x + i, n - i), by, load_some(y + i, n - i)), n - i);
  }
}

void narrow(Element to, const float* x, std::size_t n, void* y) {
  if (to == Element::f32) {
    std::memcpy(y, x, n * sizeof(float));
    return;
  }
  auto* out = static_cast<std::uint16_t*>(y);
  for (std::size_t i = 0; i < n; i += 16) {
    const F v = load_some(x + i, n - i);
    std::uint16_t some[16];
    if (to == Element::bf16) {
      store_bf16(some, v);
    } else {
      store_f16(some, v);
    }
    std::memcpy(out + i, some, least<std::size_t>(16, n - i) * sizeof(std::uint16_t));
  }
}

void add_narrow(Element from, const void* x, std::size_t n, float factor, float* y) {
  if (from == Element::f32) return add(y, static_cast<const float*>(x), n, factor);
  const auto* in = static_cast<const std::uint16_t*>(x);
  const F by = set1(factor);
  for (std::size_t i = 0; i < n; i += 16) {
    std::uint16_t some[16] = {};
    std::memcpy(some, in + i, least<std::size_t>(16, n - i) * sizeof(std::uint16_t));
    const F v = from == Element::bf16 ? load_bf16(some) : load_f16(some);
    store_some(y + i, fma(v, by, load_some(y + i, n - i)), n - i);
  }
}

float highest_of(const float* x, std::size_t n) {
  F top = set1(-__builtin_inff());
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) top = max(load(x + i), top);
  float highest_one = highest(top);
  for (; i < n; ++i) highest_one = x[i] > highest_one ? x[i] : highest_one;
  return highest_one;
}

float exponentials(const float* x, std::size_t n, float top, float factor, float* y) {
  const F from = set1(top);
  const F by = set1(factor);
  F total = zero();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F e = exp((load(x + i) - from) * by);
    total = total + e;
    store(y + i, e);
  }
  float some = sum(total);
  if (i < n) {
    store_some(y + i, exp((load_some(x + i, n - i) - from) * by), n - i);
    for (; i < n; ++i) some += y[i];
  }
  return some;
}

std::uint16_t encode(const float* x, int bits, std::int8_t* codes) {
  const F halves[2] = {load(x), load(x + 16)};
  const float top = highest(max(halves[0], halves[1]));
  const float bottom = 0 - highest(max(zero() - halves[0], zero() - halves[1]));
  const float lowest = -static_cast<float>(1 << (bits - 1));
  std::uint16_t scales[16];
  store_f16(scales, set1((-bottom > top ? bottom : top) / lowest));
  if ((scales[0] & 0x7fff) == 0) {
    std::memset(codes, 0, 32);
    return 0;
  }
  const F scale = load_f16(scales);
  for (int i = 0; i < 2; ++i) {
    const F code = min(max(round(halves[i] / scale), set1(lowest)), set1(-lowest - 1));
    store_int8(codes + 16 * i, to_int(code));
  }
  return scales[0];
}

}  // namespace

namespace FERRULE_ISA {
extern const RowTable rows;
const RowTable rows = {norm, gate, rotate, add, narrow, add_narrow, highest_of, exponentials, encode, attend};
}  // namespace FERRULE_ISA
}  // namespace ferrule
