#include "python/bench/timing.h"

#include <chrono>
#include <functional>
#include <stdexcept>

namespace ferrule {
namespace {

// `call` gets the number of the call within its sample.
struct Timed {
  std::function<Status(int)> call;
  int calls_per_sample;
};

Timed find(Group& group, int rank, int size, const TimedOperation& o) {
  Operation operation;
  operation.dtype = o.dtype;
  operation.reduction = Reduction::sum;
  operation.in = o.in;
  operation.out = o.out;
  operation.count = o.count;
  const auto everywhere = [&](Op op) -> Timed {
    operation.op = op;
    return {[=, &group](int) { return group.run(&operation, 1, o.timeout); }, 1};
  };
  const auto every_root = [&](Op op) -> Timed {
    operation.op = op;
    return {[=, &group](int root) {
              Operation rooted = operation;
              rooted.root = root;
              return group.run(&rooted, 1, o.timeout);
            },
            size};
  };
  if (o.name == "all_reduce") {
    operation.out = o.in;
    return everywhere(Op::all_reduce);
  }
  if (o.name == "all_gather") return everywhere(Op::all_gather);
  if (o.name == "reduce_scatter") return everywhere(Op::reduce_scatter);
  if (o.name == "all_to_all") return everywhere(Op::all_to_all);
  if (o.name == "barrier") return everywhere(Op::barrier);
  if (o.name == "reduce") {
    operation.out = o.in;
    return every_root(Op::reduce);
  }
  if (o.name == "gather") return every_root(Op::gather);
  if (o.name == "scatter") return every_root(Op::scatter);
  if (o.name == "broadcast") {
    operation.out = o.in;
    return every_root(Op::broadcast);
  }
  if (o.name == "send_recv") {
    operation.root = 1 - rank;
    operation.out = o.in;
    return {[=, &group](int sender) {
              if (rank > 1) return Status::ok;
              Operation half = operation;
              half.op = rank == sender ? Op::send : Op::recv;
              return group.run(&half, 1, o.timeout);
            },
            2};
  }
  throw std::invalid_argument("there is no operation " + o.name);
}

}  // namespace

std::vector<double> time_operation(Group& group, int rank, int size, const TimedOperation& operation, int samples) {
  const Timed timed = find(group, rank, size, operation);
  std::vector<double> microseconds;
  microseconds.reserve(static_cast<std::size_t>(samples));
  for (int sample = 0; sample < samples; ++sample) {
    const auto begin = Clock::now();
    for (int i = 0; i < timed.calls_per_sample; ++i) {
      if (timed.call(i) == Status::ok) continue;
      throw std::runtime_error(operation.name + " failed: " + group.failure().message);
    }
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - begin;
    microseconds.push_back(elapsed.count() / timed.calls_per_sample);
  }
  return microseconds;
}

}  // namespace ferrule
