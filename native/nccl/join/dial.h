// The connector's side of one connection: connect, and prove who we are.
#pragma once

#include <atomic>
#include <string>

#include "nccl/join/descriptor.h"
#include "nccl/join/interfaces.h"
#include "nccl/join/proof.h"
#include "transports/message.h"

namespace ferrule::nccl {

// When to give up: at a time, or at once when another thread says so.
struct Until {
  Clock::time_point deadline;
  const std::atomic<bool>& stopped;

  Until sooner(Clock::duration limit) const { return {std::min(deadline, Clock::now() + limit), stopped}; }
  bool over() const { return stopped.load(std::memory_order_relaxed) || Clock::now() >= deadline; }
};

struct Dialled {
  Descriptor fd;
  Answer answer{};
};

// `hello` gets its random number here. Throws Error where nothing answers, or not as one that has the key.
Dialled dial(const Route& route, std::uint16_t port, Hello hello, Key key, const Until& until);

}  // namespace ferrule::nccl
