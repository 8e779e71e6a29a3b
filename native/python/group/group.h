// Operation, Work and Group for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace ferrule {

// No status: nothing happened, and the caller has to go another way.
constexpr int kNotHere = -1;

void bind_group(nanobind::module_& module);

}  // namespace ferrule
