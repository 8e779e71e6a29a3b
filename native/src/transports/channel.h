// Channel: an ordered, non-blocking, bidirectional byte pipe to one peer; the interface of every transport.
//
// There is a subclass per transport (shm, tcp, verbs). The collectives above see only this interface, and sleep on what
// add_polls says.
//
// A channel belongs to one stream of a group and is driven by one thread at a time. Only shut_down, add_rail and rails
// may come from another thread. Where a channel owns a stream socket to its peer, whatever carries its data, the
// kernel closes that when the peer dies, and a rank that sleeps on it wakes at once.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transports/device_memory.h"
#include "transports/message.h"

namespace ferrule {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// The event by which poll() tells that the other end is gone although we wait for nothing from it.
#ifdef POLLRDHUP
constexpr short kHangup = POLLRDHUP;
#else
constexpr short kHangup = POLLHUP;
#endif

// Whom a channel joins. The socket belongs to the channel from here on; -1 for a channel that has none.
struct Ends {
  int rank;
  int peer;
  int fd;
  std::uint64_t epoch;
};

// Events that an operation waits for from one peer.
struct Wanted {
  bool receive = false;
  bool send = false;
};

struct RailState {
  bool alive;
  std::uint64_t bytes_sent;
  std::uint64_t bytes_received;
  std::uint32_t deaths;
  bool stalled;  // it has a socket, by which nothing gets through
};

class Channel {
 public:
  explicit Channel(const Ends& ends);
  virtual ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Take some bytes from the front of `parts` (in order), or give some; 0 when there is no room or nothing to read.
  // Offers follow each other without a gap, but the next one may begin at other parts of memory. What was offered for
  // receiving stands until it is filled: the rest of it is offered again at the same place, and bytes may come to it
  // at any time, in any order.
  virtual std::size_t try_send(std::span<const ConstBytes> parts) = 0;
  virtual std::size_t try_recv(Bytes into) = 0;
  // Bytes that try_send took and that still have to be read from the caller's memory, should a rail fail, or that no
  // socket has taken yet: an operation that sent is over only when this is false. Asking makes progress.
  virtual bool holds_callers_memory() { return false; }
  // The same for several sends in a row: how many of the last bytes that try_send took are held so. What lies before
  // them is the caller's again. Asking makes progress.
  virtual std::uint64_t held_bytes();
  // Sends may hold it until the peer has what was sent: no caller may count on room between the two.
  virtual void may_hold_memory() {}

  // Memory of devices, which the processor may not touch: a channel whose hardware reads and writes it registers it.
  // All others throw std::runtime_error, here and where they are given such memory.
  virtual std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory);
  // As try_send, of `head` and then `payload`; holds_callers_memory() tells when that may change.
  virtual std::size_t try_send_device(ConstBytes head, const DeviceBytes& payload);
  // As a receiver, offer the place for a message that is to come, which the peer uses if it has the offer in time. As a
  // sender, take the peer's offer for a message, and write to `offset` bytes behind that place.
  virtual void grant(const Grant& offer);
  virtual std::optional<Grant> take_grant(std::uint64_t /*sequence*/) { return std::nullopt; }
  virtual std::size_t try_place(const DeviceBytes& payload, const Grant& offer, std::size_t offset);
  // The group has failed: no place that was offered may be written to any more.
  virtual void revoke() {}

  // The descriptors to poll while this rank sleeps and wants that, and what to do when one of them became ready.
  virtual void add_polls(Wanted wanted, std::vector<pollfd>& into) const = 0;
  virtual void on_poll(const pollfd& ready) = 0;
  // The longest that a sleeper may leave this channel alone, for one that has timers of its own.
  virtual Clock::duration patience() const { return Clock::duration::max(); }
  // Does what is due even while no operation uses this channel: called by a sleeper whose patience has ended,
  // and now and then by the group when no operation runs.
  virtual void maintain() {}
  virtual const char* transport() const = 0;

  // For a channel that consists of rails, from any thread: hand it a fresh socket in the place of a rail that ended
  // (false: there is no such rail, and the socket stays the caller's), and how its rails are.
  virtual bool add_rail(int /*rail*/, int /*fd*/) { return false; }
  virtual std::vector<RailState> rails() const { return {}; }

  int rank() const { return rank_; }  // this one
  int peer() const { return peer_; }
  // The peer's end is closed. Bytes that arrived before may still be there for try_recv.
  bool gone() const { return gone_; }
  // The peer closed its group on purpose and owes us nothing.
  bool departed() const { return close_notice_.header.call.op == Op::goodbye; }
  // Reason why nothing more will come from this peer. Reads what is left on the socket to find the peer's own notice.
  Failure loss();
  // The same when the close notice was met where a message was expected: its header is already read, and perhaps bytes
  // behind it.
  Failure loss(const MessageHeader& notice, ConstBytes behind);

  // A message was begun and not ended: a close notice now would be taken for payload.
  bool mid_message = false;
  virtual void send_close_notice(const CloseNotice& notice);
  virtual void shut_down();

 protected:
  // Read the socket to its end, if that is there, and look for a close notice in the last bytes.
  virtual void drain() = 0;
  // Keep `data` as the newest bytes that the socket gave.
  void remember(ConstBytes data);
  void socket_ended(int error);
  bool take_close_notice();
  // drain() and send_close_notice() for a socket that carries no payload.
  void drain_notices();
  void send_notice(const CloseNotice& notice);

  const int rank_;
  const int peer_;
  const int fd_;
  const std::uint64_t epoch_;
  bool gone_ = false;
  int error_ = 0;

 private:
  [[noreturn]] void refuse_devices() const;

  CloseNotice close_notice_;
  std::array<std::byte, sizeof(CloseNotice)> last_{};
};

}  // namespace ferrule
