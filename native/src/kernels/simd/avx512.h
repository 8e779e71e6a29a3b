// Vectors of 16 lanes on AVX-512 with VNNI; with bfloat16 products where the processor has them.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#ifdef __AVX512BF16__
#define FERRULE_BF16_PAIRS 1
#endif

namespace ferrule {
namespace {

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct U {
  __m512i v;
};  // 64 bytes

inline F zero() { return {_mm512_setzero_ps()}; }
inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline F round(F a) { return {_mm512_roundscale_ps(a.v, 0)}; }
inline float sum(F a) { return _mm512_reduce_add_ps(a.v); }
inline float highest(F a) { return _mm512_reduce_max_ps(a.v); }
inline F two_to(F n) { return {_mm512_scalef_ps(_mm512_set1_ps(1), n.v)}; }  // n: whole

inline I iset1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
inline std::int32_t sum(I a) { return _mm512_reduce_add_epi32(a.v); }
inline void store_int8(std::int8_t* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

inline U load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
inline U bytes(std::uint8_t x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
inline U operator&(U a, U b) { return {_mm512_and_si512(a.v, b.v)}; }
inline U operator|(U a, U b) { return {_mm512_or_si512(a.v, b.v)}; }
constexpr bool kByteShifts = false;  // bits of a neighbour come in: mask them
template <int N>
inline U right(U a) {
  return {_mm512_srli_epi16(a.v, N)};
}
template <int N>
inline U left(U a) {
  return {_mm512_slli_epi16(a.v, N)};
}
// 16 bytes, four times over.
inline U table_of(const std::uint8_t* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline U lookup(U table, U index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }
// acc + the four products in each lane of unsigned codes and the signed bytes of `x`. kBits: that codes have.
template <int kBits>
inline I dot4(I acc, U codes, std::int32_t x) {
  return {_mm512_dpbusd_epi32(acc.v, codes.v, _mm512_set1_epi32(x))};
}
// Byte kByte of each lane.
template <int kByte>
inline I lane(U a) {
  return {_mm512_and_si512(_mm512_srli_epi32(a.v, 8 * kByte), _mm512_set1_epi32(255))};
}
inline F pick(const float* table, I index) { return {_mm512_permutexvar_ps(index.v, _mm512_loadu_ps(table))}; }
// A float8 of kMantissa bits, whose exponent has the bias of its width.
template <int kMantissa>
inline F float8(I code) {
  const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(code.v, _mm512_set1_epi32(0x7f)), 23 - kMantissa);
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code.v, _mm512_set1_epi32(0x80)), 24);
  const __m512 value = _mm512_castsi512_ps(_mm512_or_si512(magnitude, sign));
  return {_mm512_mul_ps(value, _mm512_set1_ps(kMantissa == 3 ? 0x1p120F : 0x1p112F))};
}

inline F load_bf16(const void* p) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline F load_f16(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
inline F load_u8(const void* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
inline F load_i8(const void* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
// Numbers of 4 bits, less 8: 16 of 32, in the lower halves of 16 bytes or in the higher ones.
template <bool kHigh>
inline F load_i4(const void* p) {
  const __m128i all = _mm_loadu_si128(static_cast<const __m128i*>(p));
  const __m128i halves = _mm_and_si128(kHigh ? _mm_srli_epi16(all, 4) : all, _mm_set1_epi8(15));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(halves, _mm_set1_epi8(8))))};
}
inline F load_e8m0(const void* p) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(code, 23))};
}
inline void store_f16(void* p, F x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_bf16(void* p, F x) {  // to nearest, ties to even
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
// Even and odd bfloat16 of 32.
inline F even_bf16(U a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
inline F odd_bf16(U a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
#ifdef FERRULE_BF16_PAIRS
// acc + the products of 16 pairs of bfloat16 with one pair.
inline F dot2(F acc, U pairs, std::uint32_t x) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(pairs.v),
                           reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x))))};
}
#endif

}  // namespace
}  // namespace ferrule
