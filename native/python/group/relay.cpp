#include "python/group/relay.h"

#include <stdexcept>

#include "python/text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {

PyRelay::PyRelay() {
  ErrorText error{};
  if (ferrule_relay_create(&relay_, error.data(), error.size()) != FERRULE_OK) throw std::runtime_error(error.data());
}

PyRelay::~PyRelay() {
  const nb::gil_scoped_release release;
  ferrule_relay_destroy(relay_);
}

void PyRelay::add(int a, int b) {
  ErrorText error{};
  if (ferrule_relay_add(relay_, a, b, error.data(), error.size()) != FERRULE_OK) {
    throw std::runtime_error(error.data());
  }
}

void PyRelay::close() {
  const nb::gil_scoped_release release;
  ferrule_relay_close(relay_);
}

void bind_relay(nb::module_& module) {
  nb::class_<PyRelay>(module, "Relay")
      .def(nb::init<>())
      .def("add", &PyRelay::add, "fd_a"_a, "fd_b"_a)
      .def("close", &PyRelay::close);
}

}  // namespace ferrule
