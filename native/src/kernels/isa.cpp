#include "kernels/isa.h"

#include <cstdlib>
#include <cstring>

#if defined(FERRULE_ARM_KERNELS) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(FERRULE_ARM_KERNELS) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ferrule {
namespace {

#if defined(FERRULE_ARM_KERNELS) && defined(__APPLE__)
bool has(const char* feature) {
  std::int32_t value = 0;
  std::size_t size = sizeof value;
  return ::sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

Isa found() {
#if defined(FERRULE_X86_KERNELS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) {
    return __builtin_cpu_supports("avx512bf16") ? Isa::avx512bf16 : Isa::avx512;
  }
  // F16C has no name in __builtin_cpu_supports of older compilers; every processor with AVX2 and FMA has it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#elif defined(FERRULE_ARM_KERNELS)
#if defined(__linux__)
  constexpr unsigned long kI8mmAndBf16 = 3UL << 13;  // of AT_HWCAP2; older headers have no names for them
  if ((::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
    return (::getauxval(AT_HWCAP2) & kI8mmAndBf16) == kI8mmAndBf16 ? Isa::i8mm : Isa::dotprod;
  }
#elif defined(__APPLE__)
  // Every Apple processor for desktops has dot products.
  return has("hw.optional.arm.FEAT_I8MM") && has("hw.optional.arm.FEAT_BF16") ? Isa::i8mm : Isa::dotprod;
#endif
#endif
  return Isa::base;
}

// The best one, or an older one that the environment names: to compare them, and to test all on one machine.
Isa chosen() {
#define FERRULE_ITEM(name) Isa::name,
  constexpr Isa kBuilt[] = {FERRULE_EACH_ISA(FERRULE_ITEM)};
#undef FERRULE_ITEM
  const Isa best = found();
  const char* const wanted = std::getenv("FERRULE_KERNELS");
  if (wanted == nullptr) return best;
  for (const Isa each : kBuilt) {
    if (each <= best && std::strcmp(wanted, name_of(each)) == 0) return each;
  }
  return best;
}

}  // namespace

Isa isa() {
  static const Isa one = chosen();
  return one;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::base:
      return "base";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512bf16:
      return "avx512bf16";
    case Isa::dotprod:
      return "dotprod";
    case Isa::i8mm:
      return "i8mm";
  }
  return "";
}

}  // namespace ferrule
