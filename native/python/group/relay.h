// Relay for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "ferrule/ferrule.h"

namespace ferrule {

class PyRelay {
 public:
  PyRelay();
  PyRelay(const PyRelay&) = delete;
  PyRelay& operator=(const PyRelay&) = delete;
  ~PyRelay();

  void add(int a, int b);
  void close();

 private:
  ferrule_relay* relay_ = nullptr;
};

void bind_relay(nanobind::module_& module);

}  // namespace ferrule
