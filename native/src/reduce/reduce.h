// Element-wise reductions over the buffers of all ranks, compiled once per instruction set and chosen at run time.
#pragma once

#include <cstddef>

#include "operation.h"

namespace ferrule {

// destination[i] = sources[0][i] op sources[1][i] op ... in this order. destination may be one of the sources. AVG
// divides by `ranks`: sources may be sums of several ranks.
using ReduceFunction = void (*)(void* destination, const void* const* sources, int count, std::size_t elements,
                                int ranks);

// nullptr when the pair has no meaning (AVG of BOOL) or a value is out of range.
ReduceFunction find_reduction(Dtype dtype, Reduction reduction);

using ReduceTable = ReduceFunction[kDtypes][kReductions];

}  // namespace ferrule
