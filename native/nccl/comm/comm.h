// One end of a connection of NCCL: a channel that carries messages one way, its requests, and what may end it.
//
// It moves while NCCL asks for its requests, and now and then by a thread of its own: acknowledgements, and what a lost
// rail carried, are due also while NCCL asks for nothing.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nccl/join/peer_link.h"
#include "transports/channel.h"
#include "transports/shm/shm_segment.h"

namespace ferrule::nccl {

// What a comm consists of, once both ends are connected.
struct Joined {
  Id id{};
  std::string peer;                  // for people
  std::shared_ptr<PeerLink> link;    // none within one process
  std::shared_ptr<Segment> segment;  // of a channel in shared memory
  std::unique_ptr<Channel> channel;
  Clock::duration timeout{};
};

class Comm;

struct Request {
  Comm* comm = nullptr;
  bool used = false;
  bool done = false;
  std::size_t count = 0;
  std::array<std::size_t, kMaxReceives> sizes{};
};

class Comm {
 public:
  virtual ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // Whether the request is done, which frees it. `sizes`: of its messages; may be nullptr. Throws Failure when it will
  // not be.
  bool test(Request& request, int* sizes);
  // Every wait ends with this, unless another failure came before. By any thread.
  void fail(const Failure& cause);
  // What NCCL calls a registration: its requests are in such memory. To end one that a request uses fails the comm,
  // which touches it no more; NCCL does so only when it gives a comm up.
  struct Memory {
    Comm* comm;
    const std::byte* begin;
    const std::byte* end;
  };
  Memory* add_memory(const void* data, std::size_t size);
  void remove_memory(Memory* memory);
  // By the thread that looks after idle comms.
  void look_after();

 protected:
  explicit Comm(Joined joined);
  // The last thing before a derived class goes: nothing calls it any more, and the peer learns why it ends.
  void retire();

  // With the mutex held. Move what can be moved; throws Failure.
  void drive();
  // NCCL waits for something as of now.
  void begin_wait();
  virtual bool pump() = 0;
  // Requests, or what NCCL asked for in vain, that the peer has to do something for.
  virtual bool waits() const = 0;
  virtual void release(Request& request) = 0;
  // Whether a request that is not done uses memory in there.
  virtual bool uses(const std::byte* begin, const std::byte* end) const = 0;

  std::mutex mutex_;
  Channel& channel() { return *joined_.channel; }

 private:
  void check() const;
  void look();
  void watch();
  Failure named(const Failure& failure) const;

  Joined joined_;
  std::vector<std::unique_ptr<Memory>> memory_;
  Heartbeat::SeatPointer seat_;
  std::vector<pollfd> polls_;
  unsigned idle_ = 0;  // drives in a row that moved nothing
  std::uint64_t drives_ = 0;
  std::uint64_t drives_before_ = 0;
  Clock::time_point moved_at_ = Clock::now();
  Clock::time_point looked_at_{};
  Clock::time_point maintained_at_{};

  std::atomic<bool> failed_{false};
  mutable std::mutex cause_mutex_;
  std::optional<Failure> cause_;
  bool retired_ = false;
};

}  // namespace ferrule::nccl
