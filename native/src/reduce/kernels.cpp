// The reduction loops. CMake compiles this file several times, with FERRULE_ISA naming the instruction set; the
// compiler vectorises the loops for it. Everything but the table stays inside this file, and no header with inline
// functions comes in: the linker must never pick an AVX-512 copy of a function that other code shares.
#include <cstddef>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "reduce/formats.h"
#include "reduce/reduce.h"

// Destination and source may be the same buffer, element by element. That is safe to vectorise, but the compiler
// cannot know and would take the scalar loop exactly then.
#if defined(__clang__)
#define FERRULE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define FERRULE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace ferrule {
namespace {

template <class T>
struct Unsigned {
  using type = T;
};
template <>
struct Unsigned<std::int8_t> {
  using type = std::uint8_t;
};
// A product of 16-bit numbers overflows the int that they would be promoted to.
template <>
struct Unsigned<std::int16_t> {
  using type = std::uint32_t;
};
template <>
struct Unsigned<std::uint16_t> {
  using type = std::uint32_t;
};
template <>
struct Unsigned<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct Unsigned<std::int64_t> {
  using type = std::uint64_t;
};

// Signed overflow is undefined in C++; unsigned wraps around to the same bits.
struct Sum {
  template <class T>
  static T combine(T a, T b) {
    using U = typename Unsigned<T>::type;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
  template <class T>
  static T finish(T value, int) {
    return value;
  }
};
struct Prod : Sum {
  template <class T>
  static T combine(T a, T b) {
    using U = typename Unsigned<T>::type;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
struct Min : Sum {
  template <class T>
  static T combine(T a, T b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max : Sum {
  template <class T>
  static T combine(T a, T b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct Avg : Sum {
  template <class T>
  static T finish(T value, int ranks) {
    return static_cast<T>(value / static_cast<T>(ranks));
  }
};
struct Or : Sum {
  template <class T>
  static T combine(T a, T b) {
    return a | b;
  }
};
struct And : Sum {
  template <class T>
  static T combine(T a, T b) {
    return a & b;
  }
};

constexpr std::size_t kBlock = 1024;  // elements; the accumulators stay in the first-level cache

template <class Format>
inline void load_block(typename Format::Wide* to, const typename Format::Raw* from, std::size_t n) {
  FERRULE_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] = Format::load(from[i]);
}
template <class Format>
inline void store_block(typename Format::Raw* to, const typename Format::Wide* from, std::size_t n) {
  FERRULE_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] = Format::store(from[i]);
}

#if defined(__F16C__)
// Compilers do not find these conversions by themselves. They round to nearest even, as the portable code does.
template <>
inline void load_block<F16>(float* to, const std::uint16_t* from, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < n; ++i) to[i] = F16::load(from[i]);
}
template <>
inline void store_block<F16>(std::uint16_t* to, const float* from, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  for (; i < n; ++i) to[i] = F16::store(from[i]);
}
#endif

template <class Format, class Op>
void reduce(void* destination, const void* const* sources, int count, std::size_t elements, int ranks) {
  using Raw = typename Format::Raw;
  using Wide = typename Format::Wide;
  auto* const out = static_cast<Raw*>(destination);
  const auto* const first = static_cast<const Raw*>(sources[0]);
  alignas(64) Wide total[kBlock];
  alignas(64) Wide next[kBlock];
  for (std::size_t at = 0; at < elements; at += kBlock) {
    const std::size_t n = elements - at < kBlock ? elements - at : kBlock;
    load_block<Format>(total, first + at, n);
    for (int r = 1; r < count; ++r) {
      load_block<Format>(next, static_cast<const Raw*>(sources[r]) + at, n);
      FERRULE_INDEPENDENT
      for (std::size_t i = 0; i < n; ++i) total[i] = Op::combine(total[i], next[i]);
    }
    FERRULE_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) total[i] = Op::finish(total[i], ranks);
    store_block<Format>(out + at, total, n);
  }
}

// Types that need no conversion skip the accumulator block when there are two ranks, the common case.
template <class Format, class Op>
void reduce_plain(void* destination, const void* const* sources, int count, std::size_t elements, int ranks) {
  using Raw = typename Format::Raw;
  if (count != 2) return reduce<Format, Op>(destination, sources, count, elements, ranks);
  auto* const out = static_cast<Raw*>(destination);
  const auto* const a = static_cast<const Raw*>(sources[0]);
  const auto* const b = static_cast<const Raw*>(sources[1]);
  FERRULE_INDEPENDENT
  for (std::size_t i = 0; i < elements; ++i) out[i] = Op::finish(Op::combine(a[i], b[i]), ranks);
}

template <class T>
using P = Plain<T>;

}  // namespace

namespace FERRULE_ISA {

#define FERRULE_FLOAT(F) \
  { reduce_plain<F, Sum>, reduce_plain<F, Prod>, reduce_plain<F, Min>, reduce_plain<F, Max>, reduce_plain<F, Avg> }
#define FERRULE_NARROW(F) \
  { reduce<F, Sum>, reduce<F, Prod>, reduce<F, Min>, reduce<F, Max>, reduce<F, Avg> }
// The sum of an average must not wrap around where a wider type is there.
#define FERRULE_INT(T, W)                                                                                \
  {                                                                                                      \
    reduce_plain<P<T>, Sum>, reduce_plain<P<T>, Prod>, reduce_plain<P<T>, Min>, reduce_plain<P<T>, Max>, \
        reduce<Plain<T, W>, Avg>                                                                         \
  }

extern const ReduceTable table;
const ReduceTable table = {
    FERRULE_FLOAT(P<double>),
    FERRULE_FLOAT(P<float>),
    FERRULE_NARROW(Bf16),
    FERRULE_NARROW(F16),
    FERRULE_INT(std::int8_t, std::int32_t),
    FERRULE_INT(std::uint8_t, std::int32_t),
    FERRULE_INT(std::int32_t, std::int64_t),
    FERRULE_INT(std::int64_t, std::int64_t),
    {reduce<Bool, Or>, reduce<Bool, And>, reduce<Bool, And>, reduce<Bool, Or>, nullptr},
    FERRULE_INT(std::int16_t, std::int32_t),
    FERRULE_INT(std::uint16_t, std::int32_t),
    FERRULE_INT(std::uint32_t, std::int64_t),
    FERRULE_INT(std::uint64_t, std::uint64_t),
};

}  // namespace FERRULE_ISA
}  // namespace ferrule
