// Heartbeat for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ferrule/ferrule.h"

namespace ferrule {

class PyHeartbeat {
 public:
  PyHeartbeat(int rank, int size, std::uint64_t epoch, double interval, double limit);
  PyHeartbeat(const PyHeartbeat&) = delete;
  PyHeartbeat& operator=(const PyHeartbeat&) = delete;
  ~PyHeartbeat();

  void add(int peer, int rail, int fd, const std::string& link, int via);
  std::vector<std::pair<std::string, double>> peers() const;
  std::vector<bool> rails(int peer) const;
  nanobind::dict lost() const;
  void close();
  ferrule_heartbeat* get() const { return heartbeat_; }

 private:
  ferrule_peer_health ask(int peer) const;

  int size_;
  ferrule_heartbeat* heartbeat_ = nullptr;
};

void bind_heartbeat(nanobind::module_& module);

}  // namespace ferrule
