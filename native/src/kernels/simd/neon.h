// Vectors of 16 lanes on NEON with dot products of bytes: four registers each. With products of unsigned by signed
// bytes and of bfloat16 where the processor has them.
#include <arm_neon.h>

#include <cstdint>

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define FERRULE_BF16_PAIRS 1
#endif
#ifndef __ARM_FEATURE_MATMUL_INT8
#define FERRULE_SIGNED_BYTES 1  // are what dot4 multiplies
#endif

namespace ferrule {
namespace {

struct F {
  float32x4_t a, b, c, d;
};
struct I {
  int32x4_t a, b, c, d;
};
struct U {
  uint8x16_t a, b, c, d;
};  // 64 bytes

inline F set1(float x) {
  const float32x4_t all = vdupq_n_f32(x);
  return {all, all, all, all};
}
inline F zero() { return set1(0); }
inline F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline void store(float* p, F x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
inline F operator+(F x, F y) {
  return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}
inline F operator-(F x, F y) {
  return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}
inline F operator*(F x, F y) {
  return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}
inline F operator/(F x, F y) {
  return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}
inline F fma(F x, F y, F z) {  // x * y + z
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
inline F max(F x, F y) {  // the other one where one is no number
  return {vmaxnmq_f32(x.a, y.a), vmaxnmq_f32(x.b, y.b), vmaxnmq_f32(x.c, y.c), vmaxnmq_f32(x.d, y.d)};
}
inline F min(F x, F y) { return {vminq_f32(x.a, y.a), vminq_f32(x.b, y.b), vminq_f32(x.c, y.c), vminq_f32(x.d, y.d)}; }
inline F abs(F x) { return {vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d)}; }
inline F round(F x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)}; }
inline float sum(F x) { return vaddvq_f32(vaddq_f32(vaddq_f32(x.a, x.b), vaddq_f32(x.c, x.d))); }
inline float highest(F x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }
inline float32x4_t two_to(float32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
inline F two_to(F n) { return {two_to(n.a), two_to(n.b), two_to(n.c), two_to(n.d)}; }  // n: whole, above -127

inline I iset1(std::int32_t x) {
  const int32x4_t all = vdupq_n_s32(x);
  return {all, all, all, all};
}
inline I operator+(I x, I y) {
  return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c), vaddq_s32(x.d, y.d)};
}
inline F to_float(I x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)}; }
inline I to_int(F x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b), vcvtnq_s32_f32(x.c), vcvtnq_s32_f32(x.d)}; }
inline std::int32_t sum(I x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
inline void store_int8(std::int8_t* p, I x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

inline U load_bytes(const void* p) {
  const auto* at = static_cast<const std::uint8_t*>(p);
  return {vld1q_u8(at), vld1q_u8(at + 16), vld1q_u8(at + 32), vld1q_u8(at + 48)};
}
inline U bytes(std::uint8_t x) {
  const uint8x16_t all = vdupq_n_u8(x);
  return {all, all, all, all};
}
inline U operator&(U x, U y) {
  return {vandq_u8(x.a, y.a), vandq_u8(x.b, y.b), vandq_u8(x.c, y.c), vandq_u8(x.d, y.d)};
}
inline U operator|(U x, U y) {
  return {vorrq_u8(x.a, y.a), vorrq_u8(x.b, y.b), vorrq_u8(x.c, y.c), vorrq_u8(x.d, y.d)};
}
constexpr bool kByteShifts = true;
template <int N>
inline U right(U x) {
  return {vshrq_n_u8(x.a, N), vshrq_n_u8(x.b, N), vshrq_n_u8(x.c, N), vshrq_n_u8(x.d, N)};
}
template <int N>
inline U left(U x) {
  return {vshlq_n_u8(x.a, N), vshlq_n_u8(x.b, N), vshlq_n_u8(x.c, N), vshlq_n_u8(x.d, N)};
}
inline U table_of(const std::uint8_t* p) {
  const uint8x16_t all = vld1q_u8(p);
  return {all, all, all, all};
}
inline U lookup(U table, U index) {
  return {vqtbl1q_u8(table.a, index.a), vqtbl1q_u8(table.b, index.b), vqtbl1q_u8(table.c, index.c),
          vqtbl1q_u8(table.d, index.d)};
}
#ifdef FERRULE_SIGNED_BYTES
constexpr std::uint8_t kLess = 128;
inline U less(U x) {
  const uint8x16_t sign = vdupq_n_u8(128);
  return {veorq_u8(x.a, sign), veorq_u8(x.b, sign), veorq_u8(x.c, sign), veorq_u8(x.d, sign)};
}
inline int32x4_t dot4(int32x4_t acc, uint8x16_t codes, int8x16_t x) {
  return vdotq_s32(acc, vreinterpretq_s8_u8(codes), x);
}
#else
inline int32x4_t dot4(int32x4_t acc, uint8x16_t codes, int8x16_t x) { return vusdotq_s32(acc, codes, x); }
#endif
template <int kBits>
inline I dot4(I acc, U codes, std::int32_t x) {
  const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(x));
  return {dot4(acc.a, codes.a, all), dot4(acc.b, codes.b, all), dot4(acc.c, codes.c, all), dot4(acc.d, codes.d, all)};
}
template <int kByte>
inline int32x4_t lane(uint8x16_t x) {
  uint32x4_t words = vreinterpretq_u32_u8(x);
  if constexpr (kByte > 0) words = vshrq_n_u32(words, 8 * kByte);
  if constexpr (kByte < 3) words = vandq_u32(words, vdupq_n_u32(255));
  return vreinterpretq_s32_u32(words);
}
template <int kByte>
inline I lane(U x) {
  return {lane<kByte>(x.a), lane<kByte>(x.b), lane<kByte>(x.c), lane<kByte>(x.d)};
}
inline float32x4_t pick(uint8x16x4_t table, int32x4_t index) {  // bytes 4 i to 4 i + 3
  const int32x4_t places = vmlaq_s32(vdupq_n_s32(0x03020100), index, vdupq_n_s32(0x04040404));
  return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_s32(places)));
}
inline F pick(const float* table, I index) {
  const U t = load_bytes(table);
  const uint8x16x4_t all = {{t.a, t.b, t.c, t.d}};
  return {pick(all, index.a), pick(all, index.b), pick(all, index.c), pick(all, index.d)};
}
template <int kMantissa>
inline float32x4_t float8(int32x4_t code) {
  const int32x4_t magnitude = vshlq_n_s32(vandq_s32(code, vdupq_n_s32(0x7f)), 23 - kMantissa);
  const int32x4_t sign = vshlq_n_s32(vandq_s32(code, vdupq_n_s32(0x80)), 24);
  const float32x4_t value = vreinterpretq_f32_s32(vorrq_s32(magnitude, sign));
  return vmulq_f32(value, vdupq_n_f32(kMantissa == 3 ? 0x1p120F : 0x1p112F));
}
template <int kMantissa>
inline F float8(I code) {
  return {float8<kMantissa>(code.a), float8<kMantissa>(code.b), float8<kMantissa>(code.c), float8<kMantissa>(code.d)};
}

// The first and last four of eight bfloat16.
inline float32x4_t low_bf16(uint16x8_t x) { return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), x)); }
inline float32x4_t high_bf16(uint16x8_t x) { return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), x)); }
inline F load_bf16(const void* p) {
  const auto* at = static_cast<const std::uint8_t*>(p);
  const uint16x8_t first = vreinterpretq_u16_u8(vld1q_u8(at));
  const uint16x8_t last = vreinterpretq_u16_u8(vld1q_u8(at + 16));
  return {low_bf16(first), high_bf16(first), low_bf16(last), high_bf16(last)};
}
inline F load_f16(const void* p) {
  const auto* at = static_cast<const std::uint8_t*>(p);
  const float16x8_t first = vreinterpretq_f16_u8(vld1q_u8(at));
  const float16x8_t last = vreinterpretq_f16_u8(vld1q_u8(at + 16));
  return {vcvt_f32_f16(vget_low_f16(first)), vcvt_high_f32_f16(first), vcvt_f32_f16(vget_low_f16(last)),
          vcvt_high_f32_f16(last)};
}
// 16 bytes, each in a lane.
inline I load_lanes(const void* p) {
  const uint8x16_t all = vld1q_u8(static_cast<const std::uint8_t*>(p));
  const uint16x8_t first = vmovl_u8(vget_low_u8(all));
  const uint16x8_t last = vmovl_high_u8(all);
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(first))), vreinterpretq_s32_u32(vmovl_high_u16(first)),
          vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(last))), vreinterpretq_s32_u32(vmovl_high_u16(last))};
}
inline F load_u8(const void* p) { return to_float(load_lanes(p)); }
inline F widen_i8(int8x16_t all) {
  const int16x8_t first = vmovl_s8(vget_low_s8(all));
  const int16x8_t last = vmovl_high_s8(all);
  return to_float(
      {vmovl_s16(vget_low_s16(first)), vmovl_high_s16(first), vmovl_s16(vget_low_s16(last)), vmovl_high_s16(last)});
}
inline F load_i8(const void* p) { return widen_i8(vld1q_s8(static_cast<const std::int8_t*>(p))); }
// Numbers of 4 bits, less 8: 16 of 32, in the lower halves of 16 bytes or in the higher ones.
template <bool kHigh>
inline F load_i4(const void* p) {
  const uint8x16_t all = vld1q_u8(static_cast<const std::uint8_t*>(p));
  const uint8x16_t halves = kHigh ? vshrq_n_u8(all, 4) : vandq_u8(all, vdupq_n_u8(15));
  return widen_i8(vsubq_s8(vreinterpretq_s8_u8(halves), vdupq_n_s8(8)));
}
inline F load_e8m0(const void* p) {
  const I code = load_lanes(p);
  return {vreinterpretq_f32_s32(vshlq_n_s32(code.a, 23)), vreinterpretq_f32_s32(vshlq_n_s32(code.b, 23)),
          vreinterpretq_f32_s32(vshlq_n_s32(code.c, 23)), vreinterpretq_f32_s32(vshlq_n_s32(code.d, 23))};
}
inline void store_f16(void* p, F x) {
  auto* at = static_cast<std::uint8_t*>(p);
  vst1q_u8(at, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
  vst1q_u8(at + 16, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}
inline uint32x4_t round_bf16(float32x4_t x) {  // in the upper half; to nearest, ties to even
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
}
inline uint8x16_t narrow_bf16(float32x4_t x, float32x4_t y) {
  const uint16x8_t low = vreinterpretq_u16_u32(round_bf16(x));
  return vreinterpretq_u8_u16(vuzp2q_u16(low, vreinterpretq_u16_u32(round_bf16(y))));
}
inline void store_bf16(void* p, F x) {
  auto* at = static_cast<std::uint8_t*>(p);
  vst1q_u8(at, narrow_bf16(x.a, x.b));
  vst1q_u8(at + 16, narrow_bf16(x.c, x.d));
}
inline float32x4_t even_bf16(uint8x16_t x) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u8(x), 16)); }
inline float32x4_t odd_bf16(uint8x16_t x) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(x), vdupq_n_u32(0xffff0000u)));
}
inline F even_bf16(U x) { return {even_bf16(x.a), even_bf16(x.b), even_bf16(x.c), even_bf16(x.d)}; }
inline F odd_bf16(U x) { return {odd_bf16(x.a), odd_bf16(x.b), odd_bf16(x.c), odd_bf16(x.d)}; }
#ifdef FERRULE_BF16_PAIRS
inline F dot2(F acc, U pairs, std::uint32_t x) {
  const bfloat16x8_t all = vreinterpretq_bf16_u32(vdupq_n_u32(x));
  return {
      vbfdotq_f32(acc.a, vreinterpretq_bf16_u8(pairs.a), all), vbfdotq_f32(acc.b, vreinterpretq_bf16_u8(pairs.b), all),
      vbfdotq_f32(acc.c, vreinterpretq_bf16_u8(pairs.c), all), vbfdotq_f32(acc.d, vreinterpretq_bf16_u8(pairs.d), all)};
}
#endif

}  // namespace
}  // namespace ferrule
