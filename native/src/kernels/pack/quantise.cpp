#include "kernels/pack/quantise.h"

#include <algorithm>
#include <cmath>

#include "assertions.h"
#include "reduce/formats.h"

namespace ferrule {
namespace {

constexpr std::size_t kGroup = 32;

// The code of the number that is farthest from zero (the first of equals) is the lowest one: 4 bits reach farther on
// that side.
void quantise_4(const float* x, std::uint8_t* codes, float* scale) {
  float low = 0;
  float high = 0;
  for (std::size_t k = 0; k < kGroup; ++k) {
    low = std::min(low, x[k]);
    high = std::max(high, x[k]);
  }
  float farthest = -low > high ? low : high;
  if (-low == high) farthest = *std::find_if(x, x + kGroup, [&](float each) { return std::abs(each) == high; });
  const float exact = farthest / -8;
  const float by = exact == 0 ? 0 : 1 / exact;
  *scale = F16::load(F16::store(exact));
  for (std::size_t k = 0; k < kGroup; ++k) {
    codes[k] = static_cast<std::uint8_t>(std::clamp(x[k] * by + 8.5F, 0.0F, 15.0F));
  }
}

void quantise_8(const float* x, std::uint8_t* codes, float* scale) {
  float top = 0;
  for (std::size_t k = 0; k < kGroup; ++k) top = std::max(top, std::abs(x[k]));
  const float exact = top / 127;
  const float by = exact == 0 ? 0 : 1 / exact;
  *scale = F16::load(F16::store(exact));
  for (std::size_t k = 0; k < kGroup; ++k) {
    const float code = x[k] * by;
    const float rounded = code + std::copysign(0.5F, code);  // and cut off: to nearest, ties away from zero
    codes[k] = static_cast<std::uint8_t>(128 + static_cast<int>(std::clamp(rounded, -127.0F, 127.0F)));
  }
}

template <class Number>
void quantise_as(const void* numbers, std::size_t groups, int bits, std::uint8_t* codes, float* scales) {
  const auto* x = static_cast<const typename Number::Raw*>(numbers);
  for (std::size_t i = 0; i < groups; ++i) {
    float wide[kGroup];
    for (std::size_t k = 0; k < kGroup; ++k) wide[k] = Number::load(x[i * kGroup + k]);
    (bits == 4 ? quantise_4 : quantise_8)(wide, codes + i * kGroup, scales + i);
  }
}

}  // namespace

void quantise(Element element, const void* numbers, std::size_t groups, int bits, std::uint8_t* codes, float* scales) {
  FERRULE_ASSERT(bits == 4 || bits == 8);
  switch (element) {
    case Element::bf16:
      return quantise_as<Bf16>(numbers, groups, bits, codes, scales);
    case Element::f16:
      return quantise_as<F16>(numbers, groups, bits, codes, scales);
    case Element::f32:
      return quantise_as<Plain<float>>(numbers, groups, bits, codes, scales);
  }
}

}  // namespace ferrule
