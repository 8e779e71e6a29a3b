#include "nccl/comm/keeper.h"

#include "nccl/comm/comm.h"

namespace ferrule::nccl {
namespace {

constexpr std::chrono::milliseconds kInterval{20};

}  // namespace

std::shared_ptr<Keeper> Keeper::own() {
  static std::mutex mutex;
  static std::weak_ptr<Keeper> known;
  const std::scoped_lock lock(mutex);
  std::shared_ptr<Keeper> keeper = known.lock();
  if (!keeper) known = keeper = std::make_shared<Keeper>();
  return keeper;
}

Keeper::Keeper() : thread_([this] { return look_after_all(); }, kInterval) {}

void Keeper::add(Comm* comm) {
  const std::scoped_lock lock(mutex_);
  comms_.push_back(comm);
}

void Keeper::remove(Comm* comm) {
  const std::scoped_lock lock(mutex_);
  std::erase(comms_, comm);
}

bool Keeper::look_after_all() {
  const std::scoped_lock lock(mutex_);
  for (Comm* const comm : comms_) comm->look_after();
  return true;
}

}  // namespace ferrule::nccl
