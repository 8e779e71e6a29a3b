// What becomes of connections that are let in: beats of a link to another process, or rails of a comm.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nccl/comm/receive.h"
#include "nccl/join/descriptor.h"
#include "nccl/join/peer_link.h"

namespace ferrule::nccl {

class Arrivals {
 public:
  explicit Arrivals(const Settings& settings) : settings_(settings) {}

  // Whether a connection with that hello has a place here. What is found for it is kept for `take`, which follows.
  Answer check(const Hello& hello);
  // The comm, where this was the last connection that it needs.
  std::unique_ptr<ReceiveComm> take(const Hello& hello, Descriptor fd, const std::string& name);

  bool empty() const { return links_.empty() && arriving_.empty(); }
  void sweep(Clock::time_point now);

 private:
  struct Held {
    std::shared_ptr<PeerLink> link;  // until its first comms have come, or none did in time
    Clock::time_point until;
  };
  struct Arriving {
    std::vector<Descriptor> rails;
    std::size_t missing = 0;
    Clock::time_point until;
  };

  void add_beats(const Hello& hello, Descriptor fd, const std::string& name);
  std::unique_ptr<ReceiveComm> finish(const Hello& hello, const std::string& name, std::unique_ptr<Channel> channel);

  const Settings settings_;
  std::vector<Held> links_;
  std::map<Id, Arriving> arriving_;
  std::shared_ptr<Segment> segment_;  // of the last connection that was checked
};

}  // namespace ferrule::nccl
