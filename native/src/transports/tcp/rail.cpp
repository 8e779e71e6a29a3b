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
#include <cstring>

#include "assertions.h"
#include "transports/socket.h"

namespace ferrule {
namespace {

// Bytes that the kernel may hold and has not sent yet: enough that the wire never waits for us, and little, because
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
  error_ = write_error_ = 0;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  tcp_ = ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
         (address.ss_family == AF_INET || address.ss_family == AF_INET6);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef TCP_NOTSENT_LOWAT
  if (!alone_) set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
#endif
  refuse_signals(fd);
  zero_copy_.emplace(fd);
  if (may_hold_memory_) zero_copy_->enable();
  inbox_.resize(kInboxBytes);
  unread = {};
  reader = {};
  busy_ = false;
  parked = false;
  become(State::well);
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
  zero_copy_.reset();  // nothing that it still sends is looked at
  busy_ = false;
  become(reset ? State::given_up : State::absent);
}

void Rail::suspect(Clock::time_point now) {
  FERRULE_ASSERT(state() == State::well);
  become(State::suspect);
  suspect_since_ = now;
}

void Rail::blame(Clock::time_point now) {
  FERRULE_ASSERT(state() == State::suspect);
  become(State::blamed);
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
    const ssize_t n = send_some();
    if (n < 0) {
      if (would_block(errno)) return Io::blocked;
      error_ = write_error_ = errno;
      return Io::ended;
    }
    written_ += static_cast<std::size_t>(n);
    FERRULE_ASSERT(written_ <= sizeof header_ + payload_.size());
    total_written_ += static_cast<std::uint64_t>(n);
    add(bytes_sent, static_cast<std::uint64_t>(n));
    busy_ = written_ != sizeof header_ + payload_.size();
  }
  return Io::done;
}

// The kernel takes longer for a list of parts than for one.
ssize_t Rail::send_some() {
  if (written_ >= sizeof header_) return send_payload(payload_.subspan(written_ - sizeof header_));
  if (written_ == 0 && frame_ != nullptr && frame_->copied()) {
    std::memcpy(frame_->headroom(), &header_, sizeof header_);
    return ::send(fd_, frame_->headroom(), sizeof header_ + payload_.size(), kSendFlags);
  }
  const auto* const head = reinterpret_cast<std::byte*>(&header_) + written_;
  const std::size_t left = sizeof header_ - written_;
  if (payload_.empty()) return ::send(fd_, head, left, kSendFlags);
  // The header's own memory changes with the next frame: it is always copied.
  if (zero_copy_flag() != 0) return ::send(fd_, head, left, kSendFlags | kMore);
  iovec vectors[2] = {{const_cast<std::byte*>(head), left}, {const_cast<std::byte*>(payload_.data()), payload_.size()}};
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = 2;
  return ::sendmsg(fd_, &message, kSendFlags);
}

ssize_t Rail::send_payload(ConstBytes rest) {
  const int zero_copy = zero_copy_flag();
  const ssize_t n = ::send(fd_, rest.data(), rest.size(), kSendFlags | zero_copy);
  if (zero_copy == 0) return n;
  if (n < 0 && errno == ENOBUFS) {
    zero_copy_->refused();
    return ::send(fd_, rest.data(), rest.size(), kSendFlags);
  }
  if (n > 0) zero_copy_->sent();
  return n;
}

int Rail::zero_copy_flag() const {
  return frame_ != nullptr && !frame_->copied() ? zero_copy_->flag(payload_.size()) : 0;
}

void Rail::may_hold_memory() {
  may_hold_memory_ = true;
  if (zero_copy_) zero_copy_->enable();
}

bool Rail::holds_memory() {
  if (!awaits_word()) return false;
  zero_copy_->reap();
  return zero_copy_->outstanding();
}

void Rail::disown() {
  static std::array<std::byte, kMaxPayloadBytes> anything;  // zeros; not const, so that it takes no room in the file
  payload_ = ConstBytes(anything).first(payload_.size());
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
    error_ = n == 0 ? write_error_ : errno;  // the kernel tells a reset only once
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
