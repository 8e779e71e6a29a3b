// RDMA for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "python/owned.h"
#include "transports/verbs/verbs_endpoint.h"

namespace ferrule {

using PyVerbsEndpoint = Owned<VerbsEndpoint>;  // until a channel takes it over

void bind_verbs(nanobind::module_& module);

}  // namespace ferrule
