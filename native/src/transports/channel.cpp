#include "transports/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "transports/socket.h"

namespace ferrule {

Channel::Channel(const Ends& ends) : rank_(ends.rank), peer_(ends.peer), fd_(ends.fd), epoch_(ends.epoch) {
  refuse_signals(fd_);
}

Channel::~Channel() {
  if (fd_ >= 0) ::close(fd_);
}

void Channel::shut_down() { ::shutdown(fd_, SHUT_RDWR); }

void Channel::send_close_notice(const CloseNotice& notice) {
  if (!mid_message) send_notice(notice);
}

void Channel::send_notice(const CloseNotice& notice) {
  // Best effort: when the buffer is full the peer sees the socket end, which is reason enough.
  (void)::send(fd_, &notice, sizeof notice, kSendFlags);
}

void Channel::drain_notices() {
  std::byte notices[sizeof(CloseNotice) * 2];
  while (!gone_) {
    const ssize_t got = ::recv(fd_, notices, sizeof notices, MSG_DONTWAIT);
    if (got > 0) {
      remember(ConstBytes(notices, static_cast<std::size_t>(got)));
    } else if (got == 0) {
      socket_ended(0);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      socket_ended(errno);
    }
  }
  take_close_notice();
}

void Channel::socket_ended(int error) {
  gone_ = true;
  if (error_ == 0) error_ = error;
}

void Channel::remember(ConstBytes data) {
  if (data.size() >= last_.size()) {
    std::copy(data.end() - static_cast<std::ptrdiff_t>(last_.size()), data.end(), last_.begin());
    return;
  }
  std::copy(last_.begin() + static_cast<std::ptrdiff_t>(data.size()), last_.end(), last_.begin());
  std::copy(data.begin(), data.end(), last_.end() - static_cast<std::ptrdiff_t>(data.size()));
}

bool Channel::take_close_notice() {
  CloseNotice found;
  std::memcpy(&found, last_.data(), sizeof found);
  const Op op = found.header.call.op;
  if (found.header.epoch != epoch_ || (op != Op::goodbye && op != Op::abort)) return false;
  found.text.back() = '\0';
  close_notice_ = found;
  return true;
}

std::uint64_t Channel::held_bytes() { return holds_callers_memory() ? std::numeric_limits<std::uint64_t>::max() : 0; }

Failure Channel::loss() {
  drain();
  const std::string who = "rank " + std::to_string(peer_);
  const Call& call = close_notice_.header.call;
  if (call.op == Op::abort) {
    return heard_by(rank_, {static_cast<Status>(call.reduction), call.root, close_notice_.text.data()});
  }
  if (call.op == Op::goodbye) return {Status::peer_lost, peer_, who + " closed the group while it was still needed"};
  std::string how = error_ == 0 ? "its connection ended" : std::strerror(error_);
  Failure failure(Status::peer_lost, peer_, who + " died or was cut off (" + how + ")");
  failure.unexplained = true;
  return failure;
}

Failure Channel::loss(const MessageHeader& notice, ConstBytes behind) {
  close_notice_.header = notice;
  std::size_t got = std::min(behind.size(), close_notice_.text.size() - 1);
  std::ranges::copy(behind.first(got), reinterpret_cast<std::byte*>(close_notice_.text.data()));
  while (got < close_notice_.text.size() - 1) {
    const Bytes rest(reinterpret_cast<std::byte*>(close_notice_.text.data()) + got,
                     close_notice_.text.size() - 1 - got);
    const std::size_t n = try_recv(rest);
    if (n == 0) break;  // it was sent whole or not at all; without the text the header says enough
    got += n;
  }
  return loss();
}

void Channel::refuse_devices() const {
  throw std::runtime_error("only RDMA adapters read and write memory of devices, and rank " + std::to_string(peer_) +
                           " is reached by " + transport());
}

std::shared_ptr<DeviceRegion> Channel::register_memory(const DeviceMemory&) { refuse_devices(); }

// A region of another channel may be given.
std::size_t Channel::try_send_device(ConstBytes, const DeviceBytes&) { refuse_devices(); }
void Channel::grant(const Grant&) { refuse_devices(); }
std::size_t Channel::try_place(const DeviceBytes&, const Grant&, std::size_t) { refuse_devices(); }

}  // namespace ferrule
