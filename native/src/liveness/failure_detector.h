// Failure detector: the state of every peer by its heartbeats, and when silence means that it is lost.
//
// Times go in and verdicts come out; sockets and threads are the heartbeat's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transports/message.h"

namespace ferrule {

enum class Presence : std::uint8_t {
  self,
  absent,  // never connected yet
  alive,
  left,  // said goodbye: its rank needs no other any more
  lost,  // died, or silent for too long
};

class FailureDetector {
 public:
  using Time = Clock::time_point;

  // One connection to a peer. What comes over it `via` another rank ends with that one, too; -1: a direct connection.
  struct Rail {
    bool connected = false;
    Time heard{};
    Time ended{};
    int error = 0;  // why it ended; 0: the other end closed it
    int via = -1;
    std::string name;
  };

  // A rank that should be given up. `arbiter`: the rank to decide that, so that all decide the same; -1: this one.
  struct Suspect {
    int peer;
    int arbiter;
    std::string reason;
  };

  // `limit`: how long a peer may be silent; zero: as long as it likes. `interval`: between beats.
  FailureDetector(int rank, int size, Clock::duration interval, Clock::duration limit);

  void connect(int peer, std::size_t rail, std::string name, int via, Time now);
  void hear(int peer, std::size_t rail, std::uint64_t sequence, Time now);
  void say_goodbye(int peer, std::uint64_t sequence);
  void end(int peer, std::size_t rail, int error, Time now);
  // This rank did not run for so long, and heard no peer: not a fault of the others.
  void excuse(Clock::duration late, Time now);
  void lose(int peer, std::string reason);

  // The first peer, in the order of ranks, that should be given up now.
  std::optional<Suspect> suspect(Time now) const;
  // The arbiter was asked. Unless the peer is heard, or another rank decides, this rank does soon.
  void ask(int peer, Time now);
  // Latest time of the next look for suspects, if nothing is heard until then.
  Time next_look() const;

  Presence presence(int peer) const { return peers_[index(peer)].presence; }
  // Since it was last heard on any rail; Clock::duration::max() for one that never was.
  Clock::duration silence(int peer, Time now) const;
  const std::string& reason(int peer) const { return peers_[index(peer)].reason; }
  // Whether each rail is connected and not silent for too long.
  std::vector<bool> rails(int peer, Time now) const;
  int size() const { return static_cast<int>(peers_.size()); }

 private:
  struct Peer {
    Presence presence = Presence::absent;
    std::vector<Rail> rails;
    std::uint64_t goodbye = 0;  // its number among all that the peer said
    Time asked{};               // when an arbiter was; 0: not
    std::string reason;         // why it is lost
  };

  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  const Rail* last_heard(const Peer& peer) const;
  const Rail* last_ended(const Peer& peer) const;
  // Time at which the peer has to be given up, if nothing is heard from it until then.
  Time due(const Peer& peer) const;
  // Time that a peer which is reached through another rank gets on top.
  Clock::duration allowance() const;
  std::string why(const Peer& peer, Time now) const;
  // The lowest rank that is well and neither this one nor the suspect: both, and all others, would choose it.
  int arbiter(int suspect, Time now) const;

  const int rank_;
  const Clock::duration interval_;
  const Clock::duration limit_;
  std::vector<Peer> peers_;
};

}  // namespace ferrule
