#include "tcp_channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ferrule {
namespace {

constexpr std::size_t kInbox = 64 << 10;
// From this size on a read goes straight to its place; below, one read for header and payload is cheaper.
constexpr std::size_t kDirectRead = 16 << 10;
// One call moves at most this much, so that the other direction gets its turn while both are busy.
constexpr std::size_t kTurn = 1 << 20;
constexpr std::size_t kMaxParts = 4;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

TcpChannel::TcpChannel(const Ends& ends) : Channel(ends), inbox_(kInbox) {
  const int on = 1;
  (void)::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // a Unix socket has none, and needs none
}

std::size_t TcpChannel::try_send(std::span<const ConstBytes> parts) {
  iovec vectors[kMaxParts];
  std::size_t count = 0;
  std::size_t total = 0;
  for (const ConstBytes& part : parts) {
    if (part.empty()) continue;
    if (count == kMaxParts || total == kTurn) break;
    const std::size_t size = std::min(part.size(), kTurn - total);
    vectors[count++] = {const_cast<std::byte*>(part.data()), size};
    total += size;
  }
  if (count == 0) return 0;
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
#ifdef MSG_NOSIGNAL
  const ssize_t sent = ::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
#else
  const ssize_t sent = ::sendmsg(fd_, &message, MSG_DONTWAIT);
#endif
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (would_block(errno)) return 0;
  const int error = errno;
  drain();  // the peer may have said why before it closed its end
  socket_ended(error);
  throw loss();
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
  if (into.size() >= kDirectRead) return read_socket(into.first(std::min(into.size(), kTurn)));
  inbox_end_ = read_socket(Bytes(inbox_).first(kInbox));
  return inbox_end_ == 0 ? 0 : take_inbox(into);
}

void TcpChannel::add_polls(Wanted wanted, std::vector<pollfd>& into) const {
  const int events = (wanted.receive ? POLLIN : 0) | (wanted.send ? POLLOUT : 0) | kHangup;
  into.push_back({fd_, static_cast<short>(events), 0});
}

void TcpChannel::on_poll(const pollfd& ready) {
  if ((ready.revents & (POLLHUP | POLLERR | POLLNVAL | kHangup)) == 0) return;
  drain();
  // A peer that said goodbye may be needed no more; whoever still needs it finds out by itself.
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
    if (inbox_.size() - inbox_end_ < kInbox) inbox_.resize(inbox_.size() + kInbox);
    const std::size_t n = read_socket(Bytes(inbox_).subspan(inbox_end_));
    if (n == 0) break;
    inbox_end_ += n;
  }
  if (!gone_ || inbox_end_ < sizeof(Farewell)) return;
  remember(ConstBytes(inbox_).first(inbox_end_).last(sizeof(Farewell)));
  take_farewell();
}

}  // namespace ferrule
