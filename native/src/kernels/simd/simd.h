// Vectors of 16 lanes for the instruction set that this file is compiled for. Everything is local to the including
// file: the linker must never pick a function with newer instructions for code that runs everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "kernels/simd/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/simd/avx2.h"
#elif defined(FERRULE_NEON)  // and not for base, which some compilers give the same features
#include "kernels/simd/neon.h"
#else
#include "kernels/simd/base.h"
#endif

// Inner loops. All that they call is to be inlined, which compilers do not of themselves with vectors of four
// registers.
#ifdef FERRULE_NEON
#define FERRULE_FLATTEN __attribute__((flatten))
#else
#define FERRULE_FLATTEN
#endif

namespace ferrule {
namespace {

#ifndef FERRULE_SIGNED_BYTES
// By how much codes of 8 bits must be less for dot4.
constexpr std::uint8_t kLess = 0;
inline U less(U codes) { return codes; }
#endif

// e^x to about 2e-7 of it: range reduction by ln 2, then a polynomial (minimax over half of ln 2 either side).
inline F exp(F x) {
  x = min(max(x, set1(-87.0F)), set1(88.0F));
  const F n = round(x * set1(1.44269504F));
  F f = fma(n, set1(-0.693359375F), x);
  f = fma(n, set1(2.12194440e-4F), f);
  F e = set1(1.9875691500e-4F);
  e = fma(e, f, set1(1.3981999507e-3F));
  e = fma(e, f, set1(8.3334519073e-3F));
  e = fma(e, f, set1(4.1665795894e-2F));
  e = fma(e, f, set1(1.6666665459e-1F));
  e = fma(e, f, set1(5.0000001201e-1F));
  e = fma(e, f * f, f) + set1(1.0F);
  return e * two_to(n);
}

inline F tanh(F x) {
  const F e = exp(min(max(x, set1(-10.0F)), set1(10.0F)) * set1(2.0F));
  return (e - set1(1.0F)) / (e + set1(1.0F));
}

inline F sigmoid(F x) { return set1(1.0F) / (set1(1.0F) + exp(zero() - x)); }

template <class T>
constexpr T least(T a, T b) {
  return a < b ? a : b;
}

}  // namespace
}  // namespace ferrule
