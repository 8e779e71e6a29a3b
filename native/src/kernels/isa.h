// The instruction set by which the engine's kernels run here: the best one that this machine has.
#pragma once

#include <cstdint>

namespace ferrule {

enum class Isa : std::uint8_t { base, avx2, avx512, avx512bf16, dotprod, i8mm };

Isa isa();
const char* name_of(Isa isa);

}  // namespace ferrule

// each(name) for every instruction set that this build has, in ascending order.
#if defined(FERRULE_X86_KERNELS)
#define FERRULE_EACH_ISA(each) each(base) each(avx2) each(avx512) each(avx512bf16)
#elif defined(FERRULE_ARM_KERNELS)
#define FERRULE_EACH_ISA(each) each(base) each(dotprod) each(i8mm)
#else
#define FERRULE_EACH_ISA(each) each(base)
#endif
