#include "transports/tcp/rail.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/sockios.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>

#include "assertions.h"
#include "transports/socket.h"

namespace ferrule {
namespace {

// What the kernel may hold that it has not sent yet: enough that the wire never waits for us, and little, because
// bytes that wait here cannot go over another rail. It wakes us when half of it is sent.
constexpr int kUnsentBytes = 256 << 10;

// One writer, any readers: no need for an atomic addition.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

}  // namespace

void Rail::open(int fd) {
  FERRULE_ASSERT(fd_ < 0 && fd >= 0);
  fd_ = fd;
  error_ = 0;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  tcp_ = ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
         (address.ss_family == AF_INET || address.ss_family == AF_INET6);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef TCP_NOTSENT_LOWAT
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
#endif
  refuse_signals(fd);
  inbox_.resize(kInboxBytes);
  unread = {};
  reader = {};
  busy_ = false;
  parked = false;
  state_ = State::well;
  total_written_ = arrived_ = total_read_ = read_before_ = 0;
  unanswered_ = waits_ = false;
  moved_at_ = {};
}

void Rail::close(bool reset) {
  if (fd_ < 0) return;
  if (reset) {
    const linger at_once{1, 0};
    (void)::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
#ifdef __linux__
    // At once although a forked process may have the descriptor too.
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    (void)::connect(fd_, &none, sizeof none);
#endif
  }
  ::close(fd_);
  fd_ = -1;
  busy_ = false;
  state_ = reset ? State::given_up : State::absent;
}

void Rail::suspect(Clock::time_point now) {
  FERRULE_ASSERT(state_ == State::well);
  state_ = State::suspect;
  suspect_since_ = now;
}

void Rail::blame(Clock::time_point now) {
  FERRULE_ASSERT(state_ == State::suspect);
  state_ = State::blamed;
  blamed_since_ = now;
}

Rail::Io Rail::write(const FrameHeader& header, ConstBytes payload, const OutFrame* frame) {
  FERRULE_ASSERT(alive() && !busy_ && header.length == payload.size());
  header_ = header;
  payload_ = payload;
  frame_ = frame;
  written_ = 0;
  busy_ = true;
  return flush();
}

Rail::Io Rail::flush() {
  while (busy_) {
    iovec vectors[2];
    std::size_t count = 0;
    std::size_t skip = written_;
    if (skip < sizeof header_) {
      vectors[count++] = {reinterpret_cast<std::byte*>(&header_) + skip, sizeof header_ - skip};
      skip = 0;
    } else {
      skip -= sizeof header_;
    }
    if (skip < payload_.size()) {
      vectors[count++] = {const_cast<std::byte*>(payload_.data()) + skip, payload_.size() - skip};
    }
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(fd_, &message, kSendFlags);
    if (n < 0) {
      if (would_block(errno)) return Io::blocked;
      error_ = errno;
      return Io::ended;
    }
    written_ += static_cast<std::size_t>(n);
    FERRULE_ASSERT(written_ <= sizeof header_ + payload_.size());
    total_written_ += static_cast<std::uint64_t>(n);
    add(bytes_sent, static_cast<std::uint64_t>(n));
    if (written_ != sizeof header_ + payload_.size()) return Io::blocked;
    busy_ = false;
  }
  return Io::done;
}

void Rail::disown() {
  static constexpr std::array<std::byte, kMaxPayloadBytes> kAnything{};
  payload_ = ConstBytes(kAnything).first(payload_.size());
  frame_ = nullptr;
}

Rail::Io Rail::read(Bytes direct, std::size_t ahead, std::size_t& got) {
  iovec vectors[2];
  std::size_t count = 0;
  if (!direct.empty()) vectors[count++] = {direct.data(), direct.size()};
  if (ahead != 0) vectors[count++] = {inbox_.data(), ahead};
  got = 0;
  ssize_t n;
  if (count == 1) {
    n = ::recv(fd_, vectors[0].iov_base, vectors[0].iov_len, MSG_DONTWAIT);
  } else {
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = count;
    n = ::recvmsg(fd_, &message, MSG_DONTWAIT);
  }
  if (n <= 0) {
    if (n < 0 && would_block(errno)) return Io::blocked;
    error_ = n == 0 ? 0 : errno;
    return Io::ended;
  }
  const auto total = static_cast<std::size_t>(n);
  total_read_ += total;
  add(bytes_received, total);
  got = std::min(total, direct.size());
  unread = ConstBytes(inbox_).first(total - got);
  return total == direct.size() + ahead ? Io::done : Io::blocked;
}

Rail::Queued Rail::queued() const {
#ifdef SIOCOUTQNSD
  int queued = 0;
  int unsent = 0;
  // For a Unix socket these would count what the peer's user has not read.
  if (tcp_ && ::ioctl(fd_, SIOCOUTQ, &queued) == 0 && ::ioctl(fd_, SIOCOUTQNSD, &unsent) == 0) {
    Queued queue{static_cast<std::uint64_t>(queued), queued > unsent};
    // With nothing in flight either the peer's window is shut, which it answers when it is probed, or we cannot send.
    if (queued != 0 && !queue.unanswered) queue.unanswered = probes() != 0;
    return queue;
  }
#endif
  return {};  // elsewhere the kernel's own timeouts end a rail
}

int Rail::probes() const {
#ifdef __linux__
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) return info.tcpi_probes;
#endif
  return 0;
}

bool Rail::delivered() const { return queued().bytes == 0; }

void Rail::look(Clock::time_point now) {
  const Queued queue = queued();
  const std::uint64_t arrived = total_written_ - std::min(queue.bytes, total_written_);
  if (arrived != arrived_ || total_read_ != read_before_) moved_at_ = now;
  // What was unanswered at both looks, and is the same byte, has been so all the time between.
  if (arrived != arrived_ || !unanswered_) still_since_ = now;
  arrived_ = arrived;
  read_before_ = total_read_;
  unanswered_ = queue.unanswered;
  waits_ = queue.bytes != 0;
  looked_at_ = now;
}

}  // namespace ferrule
