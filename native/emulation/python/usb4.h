// The engine of emulated USB4 controllers for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace ferrule {

void bind_usb4(nanobind::module_& module);

}  // namespace ferrule
