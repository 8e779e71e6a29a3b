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

ReduceFunction find_reduction(Dtype dtype, Reduction reduction) {
  static const ReduceTable& table = choose_table();
  const auto row = static_cast<std::size_t>(dtype);
  const auto column = static_cast<std::size_t>(reduction);
  return row < kDtypes && column < kReductions ? table[row][column] : nullptr;
}

}  // namespace ferrule
