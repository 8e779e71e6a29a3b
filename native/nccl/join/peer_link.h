// The heartbeat between this process and another one, which all comms between the two share.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "liveness/heartbeat.h"
#include "nccl/join/interfaces.h"

namespace ferrule::nccl {

class PeerLink {
 public:
  // `rank`: 0 at the connector, which made it, 1 at the listener.
  PeerLink(const Id& id, int rank, Clock::duration silence);

  const Id& id() const { return id_; }
  // A connection for beats, over the route of that number.
  void add(std::size_t rail, int fd, std::string name);
  // The other process is there, and beats.
  bool alive() const;
  // Those routes by which beats come.
  std::vector<Route> open_routes() const;

  // `fail` is called, by another thread, when the other process is lost.
  Heartbeat::SeatPointer take_seat(const Id& comm, std::function<void(const Failure&)> fail);
  // The comm ended here: its other end is told why.
  void tell(const Heartbeat::SeatPointer& seat, const Failure& cause) { heartbeat_.tell(*seat, cause); }
  void leave(const Heartbeat::SeatPointer& seat) { heartbeat_.leave(seat); }

  std::vector<Route> routes;  // the connector's, by number; not changed once others see the link

 private:
  const Id id_;
  const int peer_;
  Heartbeat heartbeat_;
};

std::uint64_t epoch_of(const Id& id);

// All links of the process. They live as long as comms use them.
class Links {
 public:
  static Links& own();

  // The connector's, by the other process. Makes one where there is none that is alive; only one thread at a time makes
  // one to the same process.
  std::shared_ptr<PeerLink> get(const Id& process, const std::function<std::shared_ptr<PeerLink>()>& make);
  // The other end does not know it any more.
  void drop(const Id& process, const std::shared_ptr<PeerLink>& link);

  // The listener's, by the connector's name for them.
  void add(const std::shared_ptr<PeerLink>& link);
  std::shared_ptr<PeerLink> find(const Id& id);

 private:
  struct Place {
    std::mutex making;
    std::weak_ptr<PeerLink> link;
  };
  void sweep();

  std::mutex mutex_;  // guards the maps
  std::map<Id, std::shared_ptr<Place>> places_;
  std::map<Id, std::weak_ptr<PeerLink>> known_;
};

}  // namespace ferrule::nccl
