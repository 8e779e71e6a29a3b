// An ordered pipe of bytes to one peer, in both directions, which never blocks.
//
// This is the seam for what comes later. Another transport (RDMA verbs) is another subclass. Several rails to one
// peer are a subclass that stripes over the channels it owns; a route through other ranks is a subclass that wraps
// the first hop. The collectives above see only this interface, and poll what `pollfds` says.
//
// Every channel owns the stream socket to its peer whatever carries its data: the kernel closes it when the peer
// dies, so whoever sleeps on it knows at once.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "message.h"

namespace ferrule {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// The event by which poll() tells that the other end is gone although we wait for nothing from it.
#ifdef POLLRDHUP
constexpr short kHangup = POLLRDHUP;
#else
constexpr short kHangup = POLLHUP;
#endif

// Whom a channel joins. The socket belongs to the channel from here on.
struct Ends {
  int rank;
  int peer;
  int fd;
  std::uint64_t epoch;
};

class Channel {
 public:
  explicit Channel(const Ends& ends);
  virtual ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Take some bytes from the front of `parts` (in order), or give some; 0 when there is no room or nothing to read.
  virtual std::size_t try_send(std::span<const ConstBytes> parts) = 0;
  virtual std::size_t try_recv(Bytes into) = 0;

  // What to poll the socket for while this rank wants to receive or send, and what to do when it became ready.
  virtual short poll_events(bool receiving, bool sending) const = 0;
  virtual void on_poll(short revents) = 0;
  virtual const char* transport() const = 0;

  int rank() const { return rank_; }  // this one
  int peer() const { return peer_; }
  int fd() const { return fd_; }
  // The socket has ended. Bytes that arrived before may still be there for try_recv.
  bool gone() const { return gone_; }
  // The peer closed its group on purpose and owes us nothing.
  bool departed() const { return farewell_.header.call.op == Op::goodbye; }
  // Why nothing more will come from this peer. Reads what is left on the socket to find the peer's own words.
  Failure loss();
  // The same when the farewell was met where a message was expected: its header is already read.
  Failure loss(const MessageHeader& farewell);

  // A message was begun and not ended: a farewell now would be taken for payload.
  bool mid_message = false;
  void say_farewell(const Farewell& farewell);
  void shut_down();

 protected:
  // Read the socket to its end, if that is there, and look for a farewell in the last bytes.
  virtual void drain() = 0;
  // Keep `data` as the newest bytes that the socket gave.
  void remember(ConstBytes data);
  void socket_ended(int error);
  bool take_farewell();

  const int rank_;
  const int peer_;
  const int fd_;
  const std::uint64_t epoch_;
  bool gone_ = false;
  int error_ = 0;

 private:
  Farewell farewell_;
  std::array<std::byte, sizeof(Farewell)> last_{};
};

}  // namespace ferrule
