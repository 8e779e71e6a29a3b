// The module ferrule._native: the C++ core for Python, as thin as it goes. Arrays come as addresses and counts, because
// asking a tensor for its address is much cheaper than any protocol for exchanging arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "operation.h"
#include "python/bench/raw.h"
#include "python/group/group.h"
#include "python/tensors.h"
#include "python/transports/channels.h"
#include "python/transports/verbs.h"

namespace nb = nanobind;

namespace {

using ferrule::Algorithm;
using ferrule::Dtype;
using ferrule::Op;
using ferrule::Reduction;
using ferrule::Status;
using ferrule::Stream;

template <class Number>
nb::dict numbered(std::initializer_list<std::pair<const char*, Number>> names) {
  nb::dict all;
  for (const auto& [name, value] : names) all[name] = static_cast<int>(value);
  return all;
}

void bind_raw(nb::module_& module) {
  module.def(
      "raw_tcp_ping_pong",
      [](int fd, std::uintptr_t data, std::size_t bytes, int rounds, bool starts, double timeout) {
        return ferrule::raw_tcp_ping_pong(fd, reinterpret_cast<void*>(data), bytes, rounds, starts, timeout);
      },
      nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "raw_tcp_exchange",
      [](int fd, std::uintptr_t data, std::uintptr_t other, std::size_t bytes, int rounds, double timeout) {
        return ferrule::raw_tcp_exchange(fd, reinterpret_cast<void*>(data), reinterpret_cast<void*>(other), bytes,
                                         rounds, timeout);
      },
      nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "raw_tcp_alone",
      [](int fd, int other_fd, std::uintptr_t data, std::size_t bytes, int rounds, double timeout) {
        return ferrule::raw_tcp_alone(fd, other_fd, reinterpret_cast<void*>(data), bytes, rounds, timeout);
      },
      nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "raw_shm_ping_pong",
      [](std::uintptr_t memory, std::uintptr_t data, std::size_t bytes, int rounds, bool starts, double timeout) {
        return ferrule::raw_shm_ping_pong(reinterpret_cast<void*>(memory), reinterpret_cast<void*>(data), bytes, rounds,
                                          starts, timeout);
      },
      nb::call_guard<nb::gil_scoped_release>());
  module.def("raw_shm_bytes", &ferrule::raw_shm_bytes);
  module.def(
      "raw_memcpy",
      [](std::uintptr_t target, std::uintptr_t source, std::size_t bytes, int rounds) {
        return ferrule::raw_memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes, rounds);
      },
      nb::call_guard<nb::gil_scoped_release>());
}

void name_numbers(nb::module_& module) {
  nb::dict statuses = numbered<Status>({{"OK", Status::ok},
                                        {"PEER_LOST", Status::peer_lost},
                                        {"TIMEOUT", Status::timeout},
                                        {"MISMATCH", Status::mismatch},
                                        {"INVALID", Status::invalid},
                                        {"ABORTED", Status::aborted},
                                        {"INTERRUPTED", Status::interrupted},
                                        {"BUSY", Status::busy},
                                        {"SYSTEM", Status::system},
                                        {"PENDING", Status::pending}});
  statuses["NOT_HERE"] = ferrule::kNotHere;
  module.attr("STATUS") = statuses;
  module.attr("OPS") = numbered<Op>({{"all_reduce", Op::all_reduce},
                                     {"all_gather", Op::all_gather},
                                     {"reduce_scatter", Op::reduce_scatter},
                                     {"broadcast", Op::broadcast},
                                     {"send", Op::send},
                                     {"barrier", Op::barrier},
                                     {"reduce", Op::reduce},
                                     {"gather", Op::gather},
                                     {"scatter", Op::scatter},
                                     {"all_to_all", Op::all_to_all},
                                     {"recv", Op::recv}});
  module.attr("ALGORITHMS") = numbered<Algorithm>({{"once", Algorithm::once},
                                                   {"pieces", Algorithm::pieces},
                                                   {"doubling", Algorithm::doubling},
                                                   {"tree", Algorithm::tree},
                                                   {"ring", Algorithm::ring}});
  module.attr("STREAMS") = numbered<Stream>({{"collectives", Stream::collectives}, {"messages", Stream::messages}});
  module.attr("DTYPES") = numbered<Dtype>({{"float64", Dtype::f64},
                                           {"float32", Dtype::f32},
                                           {"bfloat16", Dtype::bf16},
                                           {"float16", Dtype::f16},
                                           {"int8", Dtype::i8},
                                           {"uint8", Dtype::u8},
                                           {"int32", Dtype::i32},
                                           {"int64", Dtype::i64},
                                           {"bool", Dtype::boolean}});
  module.attr("REDUCTIONS") = numbered<Reduction>({{"sum", Reduction::sum},
                                                   {"prod", Reduction::prod},
                                                   {"min", Reduction::min},
                                                   {"max", Reduction::max},
                                                   {"avg", Reduction::avg}});
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Ferrule's native data plane. Use ferrule.fabric; this module checks no arguments.";
  // torch's registries outlive this module and may hold groups until the process ends.
  nb::set_leak_warnings(false);
  bind_tensors(module);
  ferrule::bind_verbs(module);
  ferrule::bind_channels(module);
  ferrule::bind_heartbeat(module);
  ferrule::bind_relay(module);
  ferrule::bind_group(module);
  bind_raw(module);
  name_numbers(module);
}
