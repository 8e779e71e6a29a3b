// The process's own listening sockets, and the thread that lets connectors in; shared by all listeners of NCCL.
//
// A connector is let in by this thread and not by NCCL's calls of accept, so that no listener waits for another.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "nccl/join/arrivals.h"
#include "wait/wake_pipe.h"

namespace ferrule::nccl {

class Acceptor {
 public:
  // The one of this process, which lives as long as somebody holds it.
  static std::shared_ptr<Acceptor> own(const Settings& settings);

  // Listens on those interfaces. Throws Error.
  Acceptor(const Settings& settings, std::vector<Interface> interfaces);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // A new listener's handle, and its end: comms that were not fetched end with it.
  Handle open();
  void close(std::uint64_t listener);
  // The next comm whose connector is let in; nullptr while there is none.
  std::unique_ptr<ReceiveComm> fetch(std::uint64_t listener);

 private:
  enum class Stage { hello, proof };
  struct Guest {
    Descriptor fd;
    std::string name;
    Clock::time_point deadline;
    Stage stage = Stage::hello;
    std::size_t got = 0;
    Hello hello;
    Challenge challenge;
    Mac proof{};
  };
  struct Listener {
    std::uint64_t secret = 0;
    std::deque<std::unique_ptr<ReceiveComm>> ready;
  };
  void listen_on(std::span<const Interface> interfaces);
  bool listen_at(std::span<const Interface> interfaces, std::uint16_t port);
  void run();
  void admit(int listening);
  // False: it is done with, or has to go.
  bool serve(Guest& guest);
  bool take_hello(Guest& guest);
  bool take_proof(Guest& guest);

  const Settings settings_;
  Handle handle_;  // the part that all listeners share
  std::vector<Descriptor> listening_;
  std::vector<std::unique_ptr<Guest>> guests_;
  Arrivals arrivals_;

  std::mutex mutex_;  // guards the two below
  std::map<std::uint64_t, Listener> listeners_;
  bool closing_ = false;
  WakePipe wake_;
  std::thread thread_;
};

}  // namespace ferrule::nccl
