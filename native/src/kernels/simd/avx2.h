// Vectors of 16 lanes on AVX2 with FMA and F16C: two registers each.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace ferrule {
namespace {

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct U {
  __m256i a, b;
};  // 64 bytes

inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F round(F x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }  // to nearest, no exceptions
inline float sum(F x) {
  const __m256 both = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float highest(F x) {
  const __m256 both = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline __m256 two_to(__m256 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
inline F two_to(F n) { return {two_to(n.a), two_to(n.b)}; }  // n: whole, above -127

inline I iset1(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I operator+(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline std::int32_t sum(I x) {
  const __m256i both = _mm256_add_epi32(x.a, x.b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline void store_int8(std::int8_t* p, I x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  const __m128i low = _mm256_castsi256_si128(words);
  const __m128i high = _mm256_extracti128_si256(words, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(low, high));
}

inline U load_bytes(const void* p) {
  const auto* at = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline U bytes(std::uint8_t x) {
  const __m256i all = _mm256_set1_epi8(static_cast<char>(x));
  return {all, all};
}
inline U operator&(U x, U y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline U operator|(U x, U y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
constexpr bool kByteShifts = false;
template <int N>
inline U right(U x) {
  return {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
}
template <int N>
inline U left(U x) {
  return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
}
inline U table_of(const std::uint8_t* p) {
  const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {all, all};
}
inline U lookup(U table, U index) {
  return {_mm256_shuffle_epi8(table.a, index.a), _mm256_shuffle_epi8(table.b, index.b)};
}
template <int kBits>
inline __m256i dot4(__m256i acc, __m256i codes, __m256i x) {
  if constexpr (kBits < 8) {  // two products of 127 * 128 fit into 16 bits
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
  } else {
    const __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(255));
    const __m256i odd = _mm256_srli_epi16(codes, 8);
    const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
    const __m256i x_odd = _mm256_srai_epi16(x, 8);
    return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd)));
  }
}
template <int kBits>
inline I dot4(I acc, U codes, std::int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {dot4<kBits>(acc.a, codes.a, all), dot4<kBits>(acc.b, codes.b, all)};
}
template <int kByte>
inline I lane(U x) {
  const __m256i low = _mm256_set1_epi32(255);
  return {_mm256_and_si256(_mm256_srli_epi32(x.a, 8 * kByte), low),
          _mm256_and_si256(_mm256_srli_epi32(x.b, 8 * kByte), low)};
}
inline F pick(const float* table, I index) {
  return {_mm256_i32gather_ps(table, index.a, 4), _mm256_i32gather_ps(table, index.b, 4)};
}
template <int kMantissa>
inline __m256 float8(__m256i code) {
  const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x7f)), 23 - kMantissa);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  const __m256 value = _mm256_castsi256_ps(_mm256_or_si256(magnitude, sign));
  return _mm256_mul_ps(value, _mm256_set1_ps(kMantissa == 3 ? 0x1p120F : 0x1p112F));
}
template <int kMantissa>
inline F float8(I code) {
  return {float8<kMantissa>(code.a), float8<kMantissa>(code.b)};
}

inline __m256 widen_bf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline F load_bf16(const void* p) {
  const auto* at = static_cast<const __m128i*>(p);
  return {widen_bf16(_mm_loadu_si128(at)), widen_bf16(_mm_loadu_si128(at + 1))};
}
inline F load_f16(const void* p) {
  const auto* at = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}
inline F load_u8(const void* p) {
  const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
}
inline F widen_i8(__m128i codes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
}
inline F load_i8(const void* p) { return widen_i8(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
// Numbers of 4 bits, less 8: 16 of 32, in the lower halves of 16 bytes or in the higher ones.
template <bool kHigh>
inline F load_i4(const void* p) {
  const __m128i all = _mm_loadu_si128(static_cast<const __m128i*>(p));
  const __m128i halves = _mm_and_si128(kHigh ? _mm_srli_epi16(all, 4) : all, _mm_set1_epi8(15));
  return widen_i8(_mm_sub_epi8(halves, _mm_set1_epi8(8)));
}
inline F load_e8m0(const void* p) {
  const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(codes), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)), 23))};
}
inline void store_f16(void* p, F x) {
  auto* at = static_cast<__m128i*>(p);
  _mm_storeu_si128(at, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(at + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256i round_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
inline void store_bf16(void* p, F x) {
  const __m256i words = _mm256_packus_epi32(round_bf16(x.a), round_bf16(x.b));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}
inline F even_bf16(U x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}
inline F odd_bf16(U x) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(x.a, high)), _mm256_castsi256_ps(_mm256_and_si256(x.b, high))};
}

}  // namespace
}  // namespace ferrule
