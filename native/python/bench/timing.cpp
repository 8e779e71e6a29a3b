#include "python/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace ferrule {
namespace {

// `every_root`: a sample is one call with every rank as root. `in_place`: the result takes the place of what went in.
struct Kind {
  const char* name;
  Op op;
  bool every_root = false;
  bool in_place = false;
};
constexpr Kind kKinds[] = {
    {"all_reduce", Op::all_reduce, false, true},
    {"all_gather", Op::all_gather},
    {"reduce_scatter", Op::reduce_scatter},
    {"all_to_all", Op::all_to_all},
    {"barrier", Op::barrier},
    {"reduce", Op::reduce, true, true},
    {"gather", Op::gather, true},
    {"scatter", Op::scatter, true},
    {"broadcast", Op::broadcast, true, true},
    {"send_recv", Op::send, false, true},
};

// The operations of one sample on this rank, and by how many calls the others count it.
std::pair<std::vector<Operation>, int> find(int rank, int size, const TimedOperation& o) {
  const auto kind = std::ranges::find_if(kKinds, [&](const Kind& each) { return o.name == each.name; });
  if (kind == std::end(kKinds)) throw std::invalid_argument("there is no operation " + o.name);
  Operation operation;
  operation.op = kind->op;
  operation.dtype = o.dtype;
  operation.in = o.in;
  operation.out = kind->in_place ? o.in : o.out;
  operation.count = o.count;
  std::vector<Operation> calls;
  if (kind->op == Op::send) {
    operation.root = 1 - rank;
    for (int sender = 0; sender < 2 && rank < 2; ++sender) {
      operation.op = rank == sender ? Op::send : Op::recv;
      calls.push_back(operation);
    }
    return {calls, 2};
  }
  for (int root = 0; root < (kind->every_root ? size : 1); ++root) {
    if (kind->every_root) operation.root = root;
    calls.push_back(operation);
  }
  return {calls, static_cast<int>(calls.size())};
}

}  // namespace

std::vector<double> time_operation(Group& group, int rank, int size, const TimedOperation& operation, int samples) {
  const auto [calls, divisor] = find(rank, size, operation);
  std::vector<double> microseconds;
  microseconds.reserve(static_cast<std::size_t>(samples));
  for (int sample = 0; sample < samples; ++sample) {
    const auto begin = Clock::now();
    for (const Operation& call : calls) {
      if (group.run(&call, 1, operation.timeout) == Status::ok) continue;
      throw std::runtime_error(operation.name + " failed: " + group.failure().message);
    }
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - begin;
    microseconds.push_back(elapsed.count() / divisor);
  }
  return microseconds;
}

}  // namespace ferrule
