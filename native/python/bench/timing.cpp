#include "python/bench/timing.h"

#include <chrono>
#include <functional>
#include <stdexcept>

namespace ferrule {
namespace {

using Clock = std::chrono::steady_clock;

// `call` gets the number of the call within its sample.
struct Timed {
  std::function<ferrule_status(int)> call;
  int calls_per_sample;
};

Timed find(ferrule_group* group, int rank, int size, const TimedOperation& o) {
  ferrule_operation operation{};
  operation.dtype = o.dtype;
  operation.reduction = FERRULE_SUM;
  operation.in = o.in;
  operation.out = o.out;
  operation.count = o.count;
  const auto everywhere = [&](ferrule_op op) -> Timed {
    operation.op = op;
    return {[=](int) { return ferrule_run(group, &operation, 1, o.timeout); }, 1};
  };
  const auto every_root = [&](ferrule_op op) -> Timed {
    operation.op = op;
    return {[=](int root) {
              ferrule_operation rooted = operation;
              rooted.root = root;
              return ferrule_run(group, &rooted, 1, o.timeout);
            },
            size};
  };
  if (o.name == "all_reduce") {
    operation.out = o.in;
    return everywhere(FERRULE_ALL_REDUCE);
  }
  if (o.name == "all_gather") return everywhere(FERRULE_ALL_GATHER);
  if (o.name == "reduce_scatter") return everywhere(FERRULE_REDUCE_SCATTER);
  if (o.name == "all_to_all") return everywhere(FERRULE_ALL_TO_ALL);
  if (o.name == "barrier") return everywhere(FERRULE_BARRIER);
  if (o.name == "reduce") {
    operation.out = o.in;
    return every_root(FERRULE_REDUCE);
  }
  if (o.name == "gather") return every_root(FERRULE_GATHER);
  if (o.name == "scatter") return every_root(FERRULE_SCATTER);
  if (o.name == "broadcast") {
    operation.out = o.in;
    return every_root(FERRULE_BROADCAST);
  }
  if (o.name == "send_recv") {
    operation.root = 1 - rank;
    operation.out = o.in;
    return {[=](int sender) {
              if (rank > 1) return FERRULE_OK;
              ferrule_operation half = operation;
              half.op = rank == sender ? FERRULE_SEND : FERRULE_RECV;
              return ferrule_run(group, &half, 1, o.timeout);
            },
            2};
  }
  throw std::invalid_argument("there is no operation " + o.name);
}

}  // namespace

std::vector<double> time_operation(ferrule_group* group, int rank, int size, const TimedOperation& operation,
                                   int samples) {
  const Timed timed = find(group, rank, size, operation);
  std::vector<double> microseconds;
  microseconds.reserve(static_cast<std::size_t>(samples));
  for (int sample = 0; sample < samples; ++sample) {
    const auto begin = Clock::now();
    for (int i = 0; i < timed.calls_per_sample; ++i) {
      if (timed.call(i) == FERRULE_OK) continue;
      ferrule_failure failure{};
      ferrule_group_failure(group, &failure);
      throw std::runtime_error(operation.name + " failed: " + failure.message);
    }
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - begin;
    microseconds.push_back(elapsed.count() / timed.calls_per_sample);
  }
  return microseconds;
}

}  // namespace ferrule
