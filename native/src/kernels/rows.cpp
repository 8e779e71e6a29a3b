#include "kernels/rows.h"

#include "kernels/isa.h"

namespace ferrule {

#define FERRULE_DECLARE(name) \
  namespace name {            \
  extern const RowTable rows; \
  }
FERRULE_EACH_ISA(FERRULE_DECLARE)
#undef FERRULE_DECLARE

const RowTable& row_kernels() {
  switch (isa()) {
#define FERRULE_CASE(name) \
  case Isa::name:          \
    return name::rows;
    FERRULE_EACH_ISA(FERRULE_CASE)
#undef FERRULE_CASE
    default:
      return base::rows;
  }
}

}  // namespace ferrule
