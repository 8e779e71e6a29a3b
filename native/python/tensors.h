// Where a torch tensor's elements lie, asked in C: a fifth of what its Python attributes take.
#pragma once

#include <nanobind/nanobind.h>

void bind_tensors(nanobind::module_& module);
