#include "liveness/heartbeat.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/sockios.h>
#endif

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "transports/socket.h"
#include "wait/thread.h"

namespace ferrule {
namespace {

void prepare(int fd) {
  refuse_signals(fd);
  // Beats must not wait behind bulk data of the same host.
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_IP, IP_TOS, IPTOS_LOWDELAY);
#ifdef SO_PRIORITY
  set_option(fd, SOL_SOCKET, SO_PRIORITY, 6);  // interactive
#endif
#ifdef TCP_THIN_LINEAR_TIMEOUTS
  // A lost beat is sent again every 0.2 s, not after pauses that double: with those, a cable that carried nothing for
  // 0.3 s would be silent for 0.8 s. Linux does so while little is under way (see say) and a loss ends its slow start,
  // as with Reno and not with BBR.
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  set_option(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
#endif
}

// Whether something that was sent has not arrived at the peer's kernel yet, as far as can be told.
bool under_way([[maybe_unused]] int fd) {
#ifdef SIOCOUTQ
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes != 0;
#else
  return false;
#endif
}

struct OwnedDescriptor {
  ~OwnedDescriptor() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

const Heartbeat::Settings& checked(const Heartbeat::Settings& settings) {
  constexpr std::chrono::hours kDay{24};
  const auto [rank, size, epoch, interval, limit] = settings;
  if (rank < 0 || rank >= size) throw std::invalid_argument("a heartbeat needs a rank of the job");
  const bool timely = interval > Clock::duration::zero() && interval < kDay && limit < kDay &&
                      (limit == Clock::duration::zero() || limit >= 2 * interval);
  if (!timely) throw std::invalid_argument("the limit of silence must be 0 or at least twice the interval");
  return settings;
}

}  // namespace

int Heartbeat::Seat::group_rank(int rank) const {
  const auto found = std::ranges::find(ranks_, rank);
  return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

void Heartbeat::Seat::deliver(const Failure& cause) {
  const std::scoped_lock lock(mutex_);
  if (fail_) fail_(cause);
}

void Heartbeat::Seat::clear() {
  const std::scoped_lock lock(mutex_);
  fail_ = nullptr;
}

Heartbeat::Heartbeat(const Settings& settings)
    : rank_(checked(settings).rank),
      epoch_(settings.epoch),
      interval_(settings.interval),
      detector_(settings.rank, settings.size, settings.interval, settings.limit),
      wires_(static_cast<std::size_t>(settings.size)),
      thread_(start_thread("heartbeat", [this] { run(); })) {}

void Heartbeat::add(int peer, std::size_t rail, int fd, std::string name, int via) {
  OwnedDescriptor own{fd};
  if (peer < 0 || peer >= size() || peer == rank_ || rail >= kMaxRails || via < -1 || via >= size()) {
    throw std::invalid_argument("there is no such peer or rail");
  }
  prepare(fd);
  const std::scoped_lock lock(mutex_);
  if (closing_) return;
  auto& wires = wires_[static_cast<std::size_t>(peer)];
  if (wires.size() <= rail) wires.resize(rail + 1);
  detector_.connect(peer, rail, std::move(name), via, Clock::now());
  Wire& one = wires[rail];
  if (one.fd >= 0) ::close(one.fd);
  one = Wire{};
  one.fd = std::exchange(own.fd, -1);
  wake_.ring();
}

void Heartbeat::join(const SeatPointer& seat) {
  const std::scoped_lock lock(mutex_);
  if (closing_) return;
  seats_.push_back(seat);
  parted_ = false;
  for (const Early& early : early_) {
    if (early.message.epoch == seat->epoch_) pass_on(seat, early.from, early.message);
  }
  for (const int rank : seat->ranks_) {
    if (detector_.presence(rank) == Presence::lost) end_group(seat, rank);
  }
  wake_.ring();
}

void Heartbeat::leave(const SeatPointer& seat) {
  {
    const std::scoped_lock lock(mutex_);
    if (std::erase(seats_, seat) != 0 && seats_.empty() && !closing_) part();
  }
  seat->clear();
}

void Heartbeat::part() {
  if (!parted_) say_to_all({.kind = HeartbeatKind::goodbye, .epoch = epoch_});
  parted_ = true;  // no beats from now on: one would take the goodbye back
}

void Heartbeat::tell(const Seat& seat, const Failure& cause) {
  const std::scoped_lock lock(mutex_);
  if (closing_) return;
  const Failure told = told_by(seat.group_rank(rank_), cause);
  const HeartbeatMessage verdict{HeartbeatKind::verdict, told.status, told.rank, seat.epoch_, 0, told.message};
  for (const int rank : seat.ranks_) say(rank, verdict);
}

Heartbeat::Health Heartbeat::health(int peer) const {
  const std::scoped_lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  return {detector_.presence(peer), detector_.silence(peer, now), detector_.rails(peer, now), detector_.reason(peer)};
}

bool Heartbeat::closed() const {
  const std::scoped_lock lock(mutex_);
  return closing_;
}

void Heartbeat::close() {
  std::call_once(close_once_, [this] {
    {
      const std::scoped_lock lock(mutex_);
      part();
      closing_ = true;
    }
    wake_.ring();
    thread_.join();
    for (auto& wires : wires_) {
      for (Wire& one : wires) {
        if (one.fd < 0) continue;
        // Closing with beats unread would reset the connection, and might undo the goodbye.
        ::shutdown(one.fd, SHUT_WR);
        std::byte unread[4096];
        while (::recv(one.fd, unread, sizeof unread, MSG_DONTWAIT) > 0) {
        }
        ::close(one.fd);
      }
    }
  });
}

void Heartbeat::say(int peer, HeartbeatMessage message) {
  if (peer == rank_) return;
  message.sequence = ++sequence_;
  for (Wire& one : wires_[static_cast<std::size_t>(peer)]) {
    if (one.fd < 0) continue;
    // A beat that has to wait says no more than the one before it.
    if (message.kind == HeartbeatKind::beat && (!one.unsent.empty() || under_way(one.fd))) continue;
    append(one.unsent, message);
    flush(one);
  }
}

void Heartbeat::say_to_all(const HeartbeatMessage& message) {
  for (int peer = 0; peer < detector_.size(); ++peer) say(peer, message);
}

void Heartbeat::flush(Wire& one) {
  while (!one.unsent.empty()) {
    const ssize_t sent = ::send(one.fd, one.unsent.data(), one.unsent.size(), kSendFlags);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // A broken connection may still hold the peer's close notice: only reading tells that it is over.
      if (!would_block(errno)) one.unsent.clear();
      return;
    }
    one.unsent.erase(one.unsent.begin(), one.unsent.begin() + sent);
  }
}

}  // namespace ferrule
