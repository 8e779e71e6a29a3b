// The bindings of the module ferrule._emulation.
#pragma once

#include <nanobind/nanobind.h>

namespace ferrule {

void bind_shaper(nanobind::module_& module);
void bind_usb4(nanobind::module_& module);

}  // namespace ferrule
