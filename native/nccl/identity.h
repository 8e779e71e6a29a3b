// Who this process is.
#pragma once

#include <string>

#include "nccl/join/wire.h"

namespace ferrule::nccl {

// Of this process; another one after a fork.
const Id& own_process();
// Equal for processes that should be able to share memory: same boot of the same kernel, same process namespace, same
// user, and the same `name` (FERRULE_HOST_ID, by which emulated hosts of one machine differ). Trying must still prove
// it.
std::uint64_t host_number(const std::string& name);

}  // namespace ferrule::nccl
