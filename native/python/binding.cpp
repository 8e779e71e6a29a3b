// The module ferrule._native: the C++ core for Python, as thin as it goes. Arrays come as addresses and counts, because
// asking a tensor for its address is much cheaper than any protocol for exchanging arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstddef>

#include "operation.h"
#include "python/bench/raw.h"
#include "python/engine/engine.h"
#include "python/group/group.h"
#include "python/tensors.h"
#include "python/transports/channels.h"
#include "python/transports/verbs.h"

namespace nb = nanobind;

namespace {

template <std::size_t Count>
nb::dict numbered(const char* const (&names)[Count], std::size_t first = 0) {
  nb::dict all;
  for (std::size_t number = first; number < Count; ++number) all[names[number]] = static_cast<int>(number);
  return all;
}

void bind_raw(nb::module_& module) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  module.def("raw_tcp_ping_pong", &ferrule::raw_tcp_ping_pong, unlocked);
  module.def("raw_tcp_exchange", &ferrule::raw_tcp_exchange, unlocked);
  module.def("raw_tcp_alone", &ferrule::raw_tcp_alone, unlocked);
  module.def("raw_shm_ping_pong", &ferrule::raw_shm_ping_pong, unlocked);
  module.def("raw_shm_bytes", &ferrule::raw_shm_bytes);
  module.def("raw_memcpy", &ferrule::raw_memcpy, unlocked);
}

void name_numbers(nb::module_& module) {
  nb::dict statuses = numbered(ferrule::kStatusNames);
  statuses["NOT_HERE"] = ferrule::kNotHere;
  module.attr("STATUS") = statuses;
  module.attr("OPS") = numbered(ferrule::kOpNames, 1);  // none is no operation
  module.attr("ALGORITHMS") = numbered(ferrule::kAlgorithmNames);
  module.attr("STREAMS") = numbered(ferrule::kStreamNames);
  module.attr("DTYPES") = numbered(ferrule::kDtypeNames);
  module.attr("REDUCTIONS") = numbered(ferrule::kReductionNames);
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
  ferrule::bind_matrices(module);
  ferrule::bind_sampling(module);
  ferrule::bind_programs(module);
  bind_raw(module);
  name_numbers(module);
}
