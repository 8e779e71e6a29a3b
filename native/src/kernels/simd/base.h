// Vectors of 16 lanes that the compiler maps onto the machine's.
#include <cmath>
#include <cstdint>
#include <cstring>

namespace ferrule {
namespace {

constexpr int kLanes = 16;

// Vectors of the compiler, which it maps onto what the machine has.
typedef float Floats __attribute__((vector_size(64)));
typedef std::int32_t Ints __attribute__((vector_size(64)));
typedef std::uint32_t Words __attribute__((vector_size(64)));

struct F {
  Floats v;
};
struct I {
  Ints v;
};
struct U {
  Words v;
};  // 64 bytes

#define FERRULE_EACH(type, expression)                      \
  type out;                                                 \
  for (int i = 0; i < kLanes; ++i) out.v[i] = (expression); \
  return out

inline float bits_to_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline std::uint32_t float_to_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline F float_lanes(Words bits) {
  F out;
  std::memcpy(&out.v, &bits, sizeof bits);
  return out;
}

inline F set1(float x) { return {x - Floats{}}; }
inline F zero() { return {Floats{}}; }
inline F load(const float* p) {
  F out;
  std::memcpy(&out.v, p, sizeof out.v);
  return out;
}
inline void store(float* p, F x) { std::memcpy(p, &x.v, sizeof x.v); }
inline F operator+(F a, F b) { return {a.v + b.v}; }
inline F operator-(F a, F b) { return {a.v - b.v}; }
inline F operator*(F a, F b) { return {a.v * b.v}; }
inline F operator/(F a, F b) { return {a.v / b.v}; }
inline F fma(F a, F b, F c) { return {a.v * b.v + c.v}; }
inline F max(F a, F b) { return {a.v > b.v ? a.v : b.v}; }
inline F min(F a, F b) { return {a.v < b.v ? a.v : b.v}; }
inline F abs(F a) { return {a.v < 0 ? -a.v : a.v}; }
inline F round(F a) { FERRULE_EACH(F, __builtin_rintf(a.v[i])); }
inline float sum(F a) {
  float all = 0;
  for (int i = 0; i < kLanes; ++i) all += a.v[i];
  return all;
}
inline float highest(F a) {
  float top = a.v[0];
  for (int i = 1; i < kLanes; ++i) top = top > a.v[i] ? top : a.v[i];
  return top;
}
inline F two_to(F n) {
  return float_lanes(__builtin_convertvector(__builtin_convertvector(n.v, Ints) + 127, Words) << 23);
}

inline I iset1(std::int32_t x) { return {x + Ints{}}; }
inline I operator+(I a, I b) { return {a.v + b.v}; }
inline F to_float(I a) { return {__builtin_convertvector(a.v, Floats)}; }
inline I to_int(F a) { FERRULE_EACH(I, static_cast<std::int32_t>(__builtin_rintf(a.v[i]))); }
inline std::int32_t sum(I a) {
  std::int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all += a.v[i];
  return all;
}
inline void store_int8(std::int8_t* p, I a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}

inline U load_bytes(const void* p) {
  U out;
  std::memcpy(&out.v, p, sizeof out.v);
  return out;
}
inline U bytes(std::uint8_t x) { return {x * 0x01010101u + Words{}}; }
inline U operator&(U a, U b) { return {a.v & b.v}; }
inline U operator|(U a, U b) { return {a.v | b.v}; }
constexpr bool kByteShifts = false;
template <int N>
inline U right(U a) {
  return {a.v >> N};
}
template <int N>
inline U left(U a) {
  return {a.v << N};
}
inline U table_of(const std::uint8_t* p) {
  std::uint8_t four[64];
  for (int i = 0; i < 64; i += 16) std::memcpy(four + i, p, 16);
  return load_bytes(four);
}
inline U lookup(U table, U index) {
  std::uint8_t from[64], at[64], to[64];
  std::memcpy(from, &table.v, 64);
  std::memcpy(at, &index.v, 64);
  for (int i = 0; i < 64; ++i) to[i] = from[at[i] & 15];
  return load_bytes(to);
}
template <int kByte>
inline I lane(U a) {
  return {__builtin_convertvector(a.v >> (8 * kByte) & 255u, Ints)};
}
template <int kBits>
inline I dot4(I acc, U codes, std::int32_t x) {
  std::int8_t four[4];
  std::memcpy(four, &x, 4);
  const Ints low = lane<0>(codes).v * four[0] + lane<1>(codes).v * four[1];
  return {acc.v + low + lane<2>(codes).v * four[2] + lane<3>(codes).v * four[3]};
}
inline F pick(const float* table, I index) { FERRULE_EACH(F, table[index.v[i]]); }
template <int kMantissa>
inline F float8(I code) {
  constexpr float kUp = kMantissa == 3 ? 0x1p120F : 0x1p112F;
  const Words bits = __builtin_convertvector(code.v, Words);
  return float_lanes((bits & 0x7fu) << (23 - kMantissa) | (bits & 0x80u) << 24) * set1(kUp);
}

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t magnitude = (half & 0x7fffu) << 13;
  const float scaled = bits_to_float(magnitude) * 0x1p112F;  // also right for subnormal numbers
  const bool special = (half & 0x7c00u) == 0x7c00u;
  const std::uint32_t bits = special ? (magnitude | 0x7f800000u) : float_to_bits(scaled);
  return bits_to_float(bits | (half & 0x8000u) << 16);
}
inline std::uint16_t float_to_half(float x) {  // to nearest, ties to even
  const std::uint32_t bits = float_to_bits(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: let the adder round
    const float shifted = bits_to_float(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000u));
  }
  const std::uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}
template <class T>
inline T read_at(const void* p, int index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(p) + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}
inline F load_bf16(const void* p) {
  FERRULE_EACH(F, bits_to_float(static_cast<std::uint32_t>(read_at<std::uint16_t>(p, i)) << 16));
}
inline F load_f16(const void* p) { FERRULE_EACH(F, half_to_float(read_at<std::uint16_t>(p, i))); }
inline F load_u8(const void* p) { FERRULE_EACH(F, static_cast<float>(read_at<std::uint8_t>(p, i))); }
inline F load_i8(const void* p) { FERRULE_EACH(F, static_cast<float>(read_at<std::int8_t>(p, i))); }
// Numbers of 4 bits, less 8: 16 of 32, in the lower halves of 16 bytes or in the higher ones.
template <bool kHigh>
inline F load_i4(const void* p) {
  FERRULE_EACH(F, static_cast<float>((read_at<std::uint8_t>(p, i) >> (kHigh ? 4 : 0) & 15) - 8));
}
inline F load_e8m0(const void* p) {
  FERRULE_EACH(F, bits_to_float(static_cast<std::uint32_t>(read_at<std::uint8_t>(p, i)) << 23));
}
inline void store_f16(void* p, F x) {
  std::uint16_t out[kLanes];
  for (int i = 0; i < kLanes; ++i) out[i] = float_to_half(x.v[i]);
  std::memcpy(p, out, sizeof out);
}
inline void store_bf16(void* p, F x) {
  std::uint16_t out[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const std::uint32_t bits = float_to_bits(x.v[i]);
    out[i] = static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  std::memcpy(p, out, sizeof out);
}
inline F even_bf16(U a) { return float_lanes(a.v << 16); }
inline F odd_bf16(U a) { return float_lanes(a.v & 0xffff0000u); }

#undef FERRULE_EACH

}  // namespace
}  // namespace ferrule
