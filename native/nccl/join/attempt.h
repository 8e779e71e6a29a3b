// A connection that is being made: by a thread, as NCCL's connect must not wait.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "nccl/comm/send.h"
#include "nccl/join/dial.h"
#include "nccl/log.h"
#include "nccl/settings.h"

namespace ferrule::nccl {

class Attempt {
 public:
  Attempt(const Settings& settings, const Handle& handle);
  // Gives up, if it is not done.
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // nullptr while it is not done. Throws Error when it failed.
  std::unique_ptr<SendComm> result();
  // Nobody asked for its result for long after its end.
  bool forgotten() const;

 private:
  void run();
  std::unique_ptr<SendComm> connect();
  std::unique_ptr<SendComm> connect_once();
  std::shared_ptr<PeerLink> link();
  std::shared_ptr<PeerLink> make_link();
  [[noreturn]] void throw_no_link(const Joined& joined) const;
  bool join_by_memory(Joined& joined, const Route& route);
  void join_by_cables(Joined& joined, const std::vector<Route>& over);
  Key key() const;
  Hello hello(Purpose purpose, const Joined& joined) const;
  std::string peer() const;

  const Settings settings_;
  const Handle handle_;
  std::atomic<bool> stopped_{false};
  const Clock::time_point started_ = Clock::now();
  const Until until_;
  std::vector<Interface> interfaces_;

  std::atomic<bool> done_{false};
  std::unique_ptr<SendComm> comm_;
  std::unique_ptr<Error> error_;
  std::thread thread_;
};

// The attempts of all of NCCL's connects; those that it never asks for again are given up.
class Attempts {
 public:
  static Attempts& own();
  // The comm of the connection that `handle` asks for, or nullptr until it is there: then `handle` remembers the
  // attempt.
  std::unique_ptr<SendComm> connect(const Settings& settings, Handle& handle);

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Attempt>> attempts_;
};

}  // namespace ferrule::nccl
