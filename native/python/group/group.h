// Operation, Work, Group, Heartbeat and Relay for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "liveness/heartbeat.h"
#include "python/owned.h"

namespace ferrule {

// No status: nothing happened, and the caller has to go another way.
constexpr int kNotHere = -1;

// Shared with the groups that it watches.
class PyHeartbeat {
 public:
  // `interval` and `limit` in seconds. Throws std::invalid_argument.
  PyHeartbeat(int rank, int size, std::uint64_t epoch, double interval, double limit);
  PyHeartbeat(const PyHeartbeat&) = delete;
  PyHeartbeat& operator=(const PyHeartbeat&) = delete;
  ~PyHeartbeat();

  Heartbeat* operator->() const { return shared_.get(); }
  const std::shared_ptr<Heartbeat>& shared() const { return shared_; }

 private:
  std::shared_ptr<Heartbeat> shared_;
};

void bind_heartbeat(nanobind::module_& module);
void bind_relay(nanobind::module_& module);
void bind_group(nanobind::module_& module);

}  // namespace ferrule
