#include "kernels/isa.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#if defined(FERRULE_ARM_KERNELS) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ferrule {
namespace {

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
  if ((::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) return Isa::dotprod;
#elif defined(__APPLE__)
  return Isa::dotprod;  // every Apple processor for desktops has it
#endif
#endif
  return Isa::base;
}

// The best one, or an older one that the environment names: to compare them, and to test all on one machine.
Isa chosen() {
  const Isa best = found();
  const char* const wanted = std::getenv("FERRULE_KERNELS");
  if (wanted == nullptr) return best;
  for (const Isa each : {Isa::base, Isa::avx2, Isa::avx512, Isa::avx512bf16}) {
    if (each <= best && best <= Isa::avx512bf16 && std::strcmp(wanted, name_of(each)) == 0) return each;
  }
  return std::strcmp(wanted, name_of(Isa::base)) == 0 ? Isa::base : best;
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
  }
  return "";
}

}  // namespace ferrule
