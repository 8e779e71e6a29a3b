#include "nccl/join/peer_link.h"

#include <cstring>

namespace ferrule::nccl {
namespace {

// As of Ferrule's ranks, see fabric/join/mesh.py.
constexpr int kBeats = 8;
constexpr std::chrono::seconds kRelaxed{1};

Clock::duration interval(Clock::duration silence) {
  return silence == Clock::duration::zero() ? Clock::duration(kRelaxed) : silence / kBeats;
}

}  // namespace

std::uint64_t epoch_of(const Id& id) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof number);
  return number;
}

PeerLink::PeerLink(const Id& id, int rank, Clock::duration silence)
    : id_(id), peer_(1 - rank), heartbeat_({rank, 2, epoch_of(id), interval(silence), silence}) {}

void PeerLink::add(std::size_t rail, int fd, std::string name) { heartbeat_.add(peer_, rail, fd, std::move(name), -1); }

bool PeerLink::alive() const { return heartbeat_.health(peer_).presence == Presence::alive; }

std::vector<Route> PeerLink::open_routes() const {
  const std::vector<bool> open = heartbeat_.health(peer_).rails;
  std::vector<Route> found;
  for (std::size_t i = 0; i < routes.size() && i < open.size(); ++i) {
    if (open[i]) found.push_back(routes[i]);
  }
  return found;
}

Heartbeat::SeatPointer PeerLink::take_seat(const Id& comm, std::function<void(const Failure&)> fail) {
  auto seat = std::make_shared<Heartbeat::Seat>(epoch_of(comm), std::vector<int>{0, 1}, std::move(fail));
  heartbeat_.join(seat);
  return seat;
}

Links& Links::own() {
  static auto* const links = new Links;  // threads may use it until the very end of the process
  return *links;
}

void Links::sweep() {
  std::erase_if(places_, [](const auto& one) { return one.second.use_count() == 1 && one.second->link.expired(); });
  std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
}

std::shared_ptr<PeerLink> Links::get(const Id& process, const std::function<std::shared_ptr<PeerLink>()>& make) {
  std::shared_ptr<Place> place;
  {
    const std::scoped_lock lock(mutex_);
    sweep();
    auto& known = places_[process];
    if (!known) known = std::make_shared<Place>();
    place = known;
  }
  const std::scoped_lock lock(place->making);
  std::shared_ptr<PeerLink> link = place->link.lock();
  if (link && link->alive()) return link;
  link = make();
  place->link = link;
  return link;
}

void Links::drop(const Id& process, const std::shared_ptr<PeerLink>& link) {
  std::shared_ptr<Place> place;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = places_.find(process);
    if (found == places_.end()) return;
    place = found->second;
  }
  const std::scoped_lock lock(place->making);
  if (place->link.lock() == link) place->link.reset();
}

void Links::add(const std::shared_ptr<PeerLink>& link) {
  const std::scoped_lock lock(mutex_);
  sweep();
  known_[link->id()] = link;
}

std::shared_ptr<PeerLink> Links::find(const Id& id) {
  const std::scoped_lock lock(mutex_);
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : found->second.lock();
}

}  // namespace ferrule::nccl
