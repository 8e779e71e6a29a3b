#include "transports/tcp/tcp_channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "assertions.h"
#include "transports/socket.h"

namespace ferrule {
namespace {

constexpr std::size_t kInboxBytes = 64 << 10;
// Reads of more than a header go straight to their place; with a header alone comes what lies behind it.
constexpr std::size_t kDirectReadBytes = 2 * sizeof(MessageHeader);
// Up to this size a message is copied together: the kernel takes longer for a list of parts.
constexpr std::size_t kJoinBytes = sizeof(MessageHeader) + (4 << 10);
// One call moves at most this much, so that the other direction gets its turn while both are busy.
constexpr std::size_t kTurnBytes = 1 << 20;
constexpr std::size_t kMaxParts = 4;

}  // namespace

TcpChannel::TcpChannel(const Ends& ends) : Channel(ends), zero_copy_(fd_), inbox_(kInboxBytes) {
  set_option(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
}

std::size_t TcpChannel::try_send(std::span<const ConstBytes> parts) {
  std::size_t total = 0;
  for (const ConstBytes& part : parts) total += part.size();
  if (total == 0) return 0;
  const ssize_t sent = total <= kJoinBytes ? send_joined(parts) : send_parts(parts);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (would_block(errno)) return 0;
  const int error = errno;
  drain();  // the peer may have said why before it closed its end
  socket_ended(error);
  throw loss();
}

ssize_t TcpChannel::send_joined(std::span<const ConstBytes> parts) {
  std::byte joined[kJoinBytes];
  std::byte* end = joined;
  for (const ConstBytes& part : parts) end = std::copy(part.begin(), part.end(), end);
  return ::send(fd_, joined, static_cast<std::size_t>(end - joined), kSendFlags);
}

ssize_t TcpChannel::send_parts(std::span<const ConstBytes> parts) {
  iovec vectors[kMaxParts];
  std::size_t count = 0;
  std::size_t total = 0;
  for (const ConstBytes& part : parts) {
    if (part.empty()) continue;
    if (count == kMaxParts || total == kTurnBytes) break;
    const std::size_t size = std::min(part.size(), kTurnBytes - total);
    vectors[count++] = {const_cast<std::byte*>(part.data()), size};
    total += size;
  }
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  const int zero_copy = zero_copy_.flag(total);
  const ssize_t sent = ::sendmsg(fd_, &message, kSendFlags | zero_copy);
  if (zero_copy == 0) return sent;
  if (sent < 0 && errno == ENOBUFS) {
    zero_copy_.refused();
    return ::sendmsg(fd_, &message, kSendFlags);
  }
  if (sent > 0) zero_copy_.sent();
  return sent;
}

bool TcpChannel::holds_callers_memory() {
  zero_copy_.reap();
  return zero_copy_.outstanding() && !gone_;
}

std::size_t TcpChannel::read_socket(Bytes into) {
  const ssize_t got = ::recv(fd_, into.data(), into.size(), MSG_DONTWAIT);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) {
    socket_ended(0);
  } else if (!would_block(errno)) {
    socket_ended(errno);
  }
  return 0;
}

std::size_t TcpChannel::take_inbox(Bytes into) {
  FERRULE_ASSERT(inbox_begin_ <= inbox_end_ && inbox_end_ <= inbox_.size());
  const std::size_t n = std::min(into.size(), inbox_end_ - inbox_begin_);
  std::memcpy(into.data(), inbox_.data() + inbox_begin_, n);
  inbox_begin_ += n;
  if (inbox_begin_ == inbox_end_) inbox_begin_ = inbox_end_ = 0;
  return n;
}

std::size_t TcpChannel::try_recv(Bytes into) {
  if (into.empty()) return 0;
  if (inbox_begin_ != inbox_end_) return take_inbox(into);
  if (gone_) return 0;
  if (into.size() >= kDirectReadBytes) return read_socket(into.first(std::min(into.size(), kTurnBytes)));
  inbox_end_ = read_socket(Bytes(inbox_).first(kInboxBytes));
  return inbox_end_ == 0 ? 0 : take_inbox(into);
}

void TcpChannel::add_polls(Wanted wanted, std::vector<pollfd>& into) const {
  const int events = (wanted.receive ? POLLIN : 0) | (wanted.send ? POLLOUT : 0) | kHangup;
  into.push_back({fd_, static_cast<short>(events), 0});
}

void TcpChannel::on_poll(const pollfd& ready) {
  // poll() calls the kernel's word about such a send an error. A real one will be there the next time, too.
  const bool sends = zero_copy_.outstanding();
  zero_copy_.reap();
  if ((ready.revents & (POLLHUP | POLLNVAL | kHangup | (sends ? 0 : POLLERR))) == 0) return;
  drain();
  // A peer that said goodbye may be needed no more; an operation that needs it finds out by itself.
  if (gone_ && !departed()) throw loss();
}

void TcpChannel::drain() {
  if (inbox_begin_ != 0) {
    std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, inbox_end_ - inbox_begin_);
    inbox_end_ -= inbox_begin_;
    inbox_begin_ = 0;
  }
  // What is still unread was sent before the end, so it is bounded by the kernel's receive buffer.
  while (!gone_) {
    if (inbox_.size() - inbox_end_ < kInboxBytes) inbox_.resize(inbox_.size() + kInboxBytes);
    const std::size_t n = read_socket(Bytes(inbox_).subspan(inbox_end_));
    if (n == 0) break;
    inbox_end_ += n;
  }
  if (!gone_ || inbox_end_ < sizeof(CloseNotice)) return;
  remember(ConstBytes(inbox_).first(inbox_end_).last(sizeof(CloseNotice)));
  take_close_notice();
}

}  // namespace ferrule
