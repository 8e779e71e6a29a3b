#include "relay/relay.h"
#include "python/group/group.h"
#include "python/owned.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {

void bind_relay(nb::module_& module) {
  using PyRelay = Owned<Relay>;
  nb::class_<PyRelay>(module, "Relay")
      .def("__init__", [](PyRelay* self) { new (self) PyRelay(std::make_unique<Relay>()); })
      .def(
          "add", [](const PyRelay& relay, int a, int b) { relay.get().add(a, b); }, "fd_a"_a, "fd_b"_a)
      .def("close", [](const PyRelay& relay) {
        const nb::gil_scoped_release unlocked;
        relay.get().close();
      });
}

}  // namespace ferrule
