// The thread that looks after all comms of the process while NCCL does not.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "wait/maintenance_thread.h"

namespace ferrule::nccl {

class Comm;

class Keeper {
 public:
  // The one of this process, which lives as long as a comm holds it.
  static std::shared_ptr<Keeper> own();
  Keeper();

  void add(Comm* comm);
  // It is not looked after when this returns.
  void remove(Comm* comm);

 private:
  bool look_after_all();

  std::mutex mutex_;
  std::vector<Comm*> comms_;
  MaintenanceThread thread_;
};

}  // namespace ferrule::nccl
