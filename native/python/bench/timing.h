// Timing of operations without Python in between, for benchmarks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "group/group.h"

namespace ferrule {

// Operation to time. `in` and `out` hold what the Operation asks for, `count` in its meaning too.
struct TimedOperation {
  std::string name;
  void* in;
  void* out;
  std::size_t count;
  Dtype dtype;
  double timeout;
};

// Microseconds per call of `samples` calls one after the other, as this rank sees them. Where a root need not wait
// for the others (broadcast, reduce, gather, scatter) a sample is one call with every rank as root, divided by their
// number; of send_recv it is half a round trip between ranks 0 and 1. Throws std::invalid_argument for an unknown
// name and std::runtime_error with the group's failure.
std::vector<double> time_operation(Group& group, int rank, int size, const TimedOperation& operation, int samples);

}  // namespace ferrule
