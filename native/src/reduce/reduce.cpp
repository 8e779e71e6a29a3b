#include "reduce/reduce.h"

namespace ferrule {

namespace base {
extern const ReduceTable table;
}
#ifdef FERRULE_X86_KERNELS
namespace avx2 {
extern const ReduceTable table;
}
namespace avx512 {
extern const ReduceTable table;
}
#endif

namespace {

const ReduceTable& choose_table() {
#ifdef FERRULE_X86_KERNELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return avx512::table;
  }
  if (__builtin_cpu_supports("avx2")) return avx2::table;
#endif
  return base::table;
}

}  // namespace

ReduceFunction find_reduction(ferrule_dtype dtype, ferrule_reduction reduction) {
  static const ReduceTable& table = choose_table();
  if (dtype < 0 || dtype >= kDtypes || reduction < 0 || reduction >= kReductions) return nullptr;
  return table[dtype][reduction];
}

}  // namespace ferrule

extern "C" size_t ferrule_dtype_size(ferrule_dtype dtype) {
  switch (dtype) {
    case FERRULE_F64:
    case FERRULE_I64:
      return 8;
    case FERRULE_F32:
    case FERRULE_I32:
      return 4;
    case FERRULE_BF16:
    case FERRULE_F16:
      return 2;
    case FERRULE_I8:
    case FERRULE_U8:
    case FERRULE_BOOL:
      return 1;
  }
  return 0;
}
