// Operation, Work and Group for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace ferrule {

void bind_group(nanobind::module_& module);

}  // namespace ferrule
