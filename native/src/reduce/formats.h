// Number formats: of elements in memory (Raw), and of their combination (Wide). For loops over numbers only: internal
// linkage keeps the copies for different instruction sets apart.
#pragma once

#include <cstdint>

namespace ferrule {
namespace {

template <class To, class From>
inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &value, sizeof to);
  return to;
}

template <class T, class W = T>
struct Plain {
  using Raw = T;
  using Wide = W;
  static Wide load(Raw value) { return static_cast<Wide>(value); }
  static Raw store(Wide value) { return static_cast<Raw>(value); }
};

struct Bool {
  using Raw = std::uint8_t;
  using Wide = std::uint8_t;
  static Wide load(Raw value) { return value != 0; }
  static Raw store(Wide value) { return value; }
};

struct Bf16 {
  using Raw = std::uint16_t;
  using Wide = float;
  static Wide load(Raw value) { return bits<float>(static_cast<std::uint32_t>(value) << 16); }
  static Raw store(Wide value) {
    const auto word = bits<std::uint32_t>(value);
    const std::uint32_t rounded = word + 0x7fffU + ((word >> 16) & 1U);  // to nearest, ties to even
    const std::uint32_t quiet = word | 0x400000U;                        // a NaN must not round to infinity
    return static_cast<Raw>(((word & 0x7fffffffU) > 0x7f800000U ? quiet : rounded) >> 16);
  }
};

struct F16 {
  using Raw = std::uint16_t;
  using Wide = float;
#if defined(__aarch64__)  // which has instructions for it; GCC before 13 has no _Float16 in C++
  static Wide load(Raw value) {
    __fp16 half;
    __builtin_memcpy(&half, &value, sizeof half);
    return half;
  }
  static Raw store(Wide value) {
    const auto half = static_cast<__fp16>(value);
    Raw raw;
    __builtin_memcpy(&raw, &half, sizeof raw);
    return raw;
  }
#else
  static Wide load(Raw value) {
    const std::uint32_t magnitude = (value & 0x7fffU) << 13;
    const std::uint32_t sign = (value & 0x8000U) << 16;
    const std::uint32_t normal = magnitude + (112U << 23);
    const std::uint32_t special = magnitude + (224U << 23);  // infinity and NaN keep the highest exponent
    // A subnormal half: give it the exponent of 2^-14 with a hidden one, then take the one away again.
    const auto small = bits<std::uint32_t>(bits<float>(magnitude + (113U << 23)) - bits<float>(113U << 23));
    const std::uint32_t finite = magnitude < (1U << 23) ? small : normal;
    return bits<float>(sign | (magnitude >= (31U << 23) ? special : finite));
  }
  static Raw store(Wide value) {
    const auto word = bits<std::uint32_t>(value);
    const std::uint32_t magnitude = word & 0x7fffffffU;
    const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
    // Adding 0.5 shifts a result below 2^-14 to the last bits of the sum; the addition rounds as wanted.
    const std::uint32_t small = bits<std::uint32_t>(bits<float>(magnitude) + 0.5F) - 0x3f000000U;
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    const std::uint32_t finite = magnitude < (113U << 23) ? small : normal;
    return static_cast<Raw>((magnitude >= 0x47800000U ? special : finite) | ((word >> 16) & 0x8000U));
  }
#endif
};

}  // namespace
}  // namespace ferrule
