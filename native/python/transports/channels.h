// Shared-memory segments and channels for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "python/owned.h"
#include "transports/channel.h"
#include "transports/shm/shm_segment.h"

namespace ferrule {

using PySegment = Owned<Segment>;
using PyChannel = Owned<Channel>;

void bind_channels(nanobind::module_& module);

}  // namespace ferrule
