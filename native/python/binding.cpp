// The module ferrule._native: the C ABI for Python, as thin as it goes. Arrays come as addresses and counts, because
// asking a tensor for its address is much cheaper than any protocol for exchanging arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "python/transports/channels.h"
#include "ferrule/ferrule.h"
#include "python/group/group.h"
#include "python/group/heartbeat.h"
#include "python/bench/raw.h"
#include "python/group/relay.h"
#ifdef __linux__
#include "emulation/python/shaper.h"
#endif
#include "python/tensors.h"
#ifdef __linux__
#include "emulation/python/usb4.h"
#endif
#include "python/transports/verbs.h"

namespace nb = nanobind;

namespace {

nb::dict numbered(const std::vector<std::pair<const char*, int>>& names) {
  nb::dict all;
  for (const auto& [name, value] : names) all[name] = value;
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
        return ferrule::raw_tcp_exchange(fd, reinterpret_cast<void*>(data), reinterpret_cast<void*>(other), bytes, rounds,
                                         timeout);
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
  module.attr("STATUS") = numbered({{"OK", FERRULE_OK},
                                    {"PEER_LOST", FERRULE_PEER_LOST},
                                    {"TIMEOUT", FERRULE_TIMEOUT},
                                    {"MISMATCH", FERRULE_MISMATCH},
                                    {"INVALID", FERRULE_INVALID},
                                    {"ABORTED", FERRULE_ABORTED},
                                    {"INTERRUPTED", FERRULE_INTERRUPTED},
                                    {"BUSY", FERRULE_BUSY},
                                    {"SYSTEM", FERRULE_SYSTEM},
                                    {"PENDING", FERRULE_PENDING},
                                    {"NOT_HERE", ferrule::kNotHere}});
  module.attr("OPS") = numbered({{"all_reduce", FERRULE_ALL_REDUCE},
                                 {"all_gather", FERRULE_ALL_GATHER},
                                 {"reduce_scatter", FERRULE_REDUCE_SCATTER},
                                 {"broadcast", FERRULE_BROADCAST},
                                 {"send", FERRULE_SEND},
                                 {"barrier", FERRULE_BARRIER},
                                 {"reduce", FERRULE_REDUCE},
                                 {"gather", FERRULE_GATHER},
                                 {"scatter", FERRULE_SCATTER},
                                 {"all_to_all", FERRULE_ALL_TO_ALL},
                                 {"recv", FERRULE_RECV}});
  module.attr("ALGORITHMS") = numbered({{"once", FERRULE_ONCE},
                                        {"pieces", FERRULE_PIECES},
                                        {"doubling", FERRULE_DOUBLING},
                                        {"tree", FERRULE_TREE},
                                        {"ring", FERRULE_RING}});
  module.attr("STREAMS") = numbered({{"collectives", FERRULE_COLLECTIVES}, {"messages", FERRULE_MESSAGES}});

  nb::dict dtypes;
  const char* const dtype_names[] = {"float64", "float32", "bfloat16", "float16", "int8",
                                     "uint8",   "int32",   "int64",    "bool"};
  for (int i = 0; i < 9; ++i) dtypes[dtype_names[i]] = i;
  module.attr("DTYPES") = dtypes;

  nb::dict reductions;
  const char* const reduction_names[] = {"sum", "prod", "min", "max", "avg"};
  for (int i = 0; i < 5; ++i) reductions[reduction_names[i]] = i;
  module.attr("REDUCTIONS") = reductions;
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Ferrule's native data plane. Use ferrule.fabric; this module checks no arguments.";
  // torch's registries outlive this module and may hold groups until the process ends.
  nb::set_leak_warnings(false);
  bind_tensors(module);
  bind_verbs(module);
  ferrule::bind_channels(module);
  ferrule::bind_heartbeat(module);
  ferrule::bind_relay(module);
#ifdef __linux__
  ferrule::bind_shaper(module);
  ferrule::bind_usb4(module);
#endif
  ferrule::bind_group(module);
  bind_raw(module);
  name_numbers(module);
}
