// What a group does with single channels: upkeep of those that consist of rails, and registration of memory.
#include <stdexcept>

#include "group/group.h"

namespace ferrule {

bool Group::maintain() {
  for (std::size_t stream = 0; stream < tracks_.size(); ++stream) {
    Track& one = *tracks_[stream];
    if (!one.queue.try_maintain()) continue;  // an operation looks after its channels itself
    std::string problem;
    try {
      // Not after the end: what was offered for receiving is the user's again.
      for (const auto& channel : one.owned) {
        if (!ended_.load(std::memory_order_acquire)) channel->maintain();
      }
    } catch (const std::exception& error) {  // no memory for bytes without a receive yet
      problem = error.what();
    }
    one.queue.leave();
    if (!problem.empty()) fail(Failure(Status::system, -1, problem));
  }
  return !ended_.load(std::memory_order_acquire);
}

Channel* Group::channel(int stream, int peer) const {
  if (closed_ || stream < 0 || stream >= kStreams || peer < 0 || peer >= size_) return nullptr;
  return tracks_[static_cast<std::size_t>(stream)]->channels[static_cast<std::size_t>(peer)];
}

Status Group::add_rail(int stream, int peer, int rail, int fd) {
  const std::scoped_lock lock(end_mutex_);
  Channel* const one = channel(stream, peer);
  if (one == nullptr || !one->add_rail(rail, fd)) return Status::invalid;
  tracks_[static_cast<std::size_t>(stream)]->waiter.wake();
  return Status::ok;
}

std::vector<RailState> Group::rails(int stream, int peer) const {
  const std::scoped_lock lock(end_mutex_);
  const Channel* const one = channel(stream, peer);
  return one == nullptr ? std::vector<RailState>() : one->rails();
}

std::shared_ptr<DeviceRegion> Group::register_memory(int peer, const DeviceMemory& memory) const {
  const std::scoped_lock lock(end_mutex_);
  Channel* const one = channel(static_cast<int>(Stream::messages), peer);
  if (one == nullptr) throw std::runtime_error("the group has no connection to rank " + std::to_string(peer));
  return one->register_memory(memory);
}

}  // namespace ferrule
