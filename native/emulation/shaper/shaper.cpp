#include "emulation/shaper/shaper.h"

#include <fcntl.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include "transports/message.h"
#include "wait/thread.h"

namespace ferrule::shaper {
namespace {

constexpr std::size_t kLargestPacket = (1 << 16) + 4096;  // a whole offloaded frame with its headers
constexpr std::size_t kCopied = 16384;  // smaller ones are copied, so that a queue of them takes no more than they need
constexpr int kBatch = 8;               // what one end may send before the others get their turn
constexpr int kEvents = 32;
constexpr std::uint64_t kBell = UINT64_MAX;
constexpr Time kSecond = 1'000'000'000;
constexpr Time kOldest = kSecond;  // of a packet; more means that the clock was set

Time nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

Time nanoseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return nanoseconds(now);
}

// Time since the kernel took it from its sender: however late this thread is, the cable's time began then. The kernel
// stamps with the time of day, which may be set meanwhile.
Time age_of(msghdr& message) {
  const cmsghdr* const note = CMSG_FIRSTHDR(&message);
  if (note == nullptr || note->cmsg_level != SOL_SOCKET || note->cmsg_type != SCM_TIMESTAMPNS) return 0;
  timespec stamp;
  std::memcpy(&stamp, CMSG_DATA(note), sizeof stamp);
  const Time age = nanoseconds(CLOCK_REALTIME) - nanoseconds(stamp);
  return age >= 0 && age <= kOldest ? age : 0;
}

[[noreturn]] void refuse(const char* doing) {
  throw std::runtime_error(std::string("cannot ") + doing + ": " + std::strerror(errno));
}

// Argument of sched_setattr(2); glibc has it since 2.41 only.
struct Scheduling {
  std::uint32_t size = 48;
  std::uint32_t policy = SCHED_OTHER;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(Scheduling) == 48);

// Wake soon after a packet, also beside hosts that compute: timers without slack, a higher weight where that is
// allowed, and short slices (kernel 6.12), which let a thread interrupt others that have long ones. Not a real-time
// class: the kernel would stop it for 50 ms in every second under full load.
void be_prompt() {
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  Scheduling wanted;
  wanted.nice = -15;
  wanted.runtime = 100'000;
  if (::syscall(SYS_sched_setattr, 0, &wanted, 0) == 0) return;
  wanted.nice = 0;
  (void)::syscall(SYS_sched_setattr, 0, &wanted, 0);
}

// Packets for which a packet socket had no room, since this was asked last.
std::uint64_t missed(int fd) {
  tpacket_stats found{};
  socklen_t size = sizeof found;
  return ::getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &found, &size) == 0 ? found.tp_drops : 0;
}

void close_all(const std::vector<int>& fds) {
  for (const int fd : fds) ::close(fd);
}

}  // namespace

Worker::Worker() : spare_(std::make_unique_for_overwrite<std::byte[]>(kLargestPacket)) {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  bell_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kBell}};
  if (epoll_ < 0 || bell_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, bell_, &event) != 0) {
    const int error = errno;
    close_all({epoll_, bell_});
    errno = error;
    refuse("wait for packets");
  }
  thread_ = start_thread("ferrule-shaper", [this] { run(); });
}

Worker::~Worker() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  ring();
  thread_.join();
  for (const auto& [number, cable] : cables_) close_all(cable.fds);
  close_all({epoll_, bell_});
}

void Worker::ring() {
  const std::uint64_t one = 1;
  (void)!::write(bell_, &one, sizeof one);
}

void Worker::call(std::function<void()> order) {
  std::packaged_task<void()> task(std::move(order));
  std::future<void> done = task.get_future();
  {
    const std::scoped_lock lock(mutex_);
    orders_.push_back(std::move(task));
  }
  ring();
  done.get();
}

bool Worker::run_orders() {
  // In this order: an order that comes later than this look at them rings a bell that has not been heard.
  rung_ = false;
  std::uint64_t rings;
  (void)!::read(bell_, &rings, sizeof rings);
  std::vector<std::packaged_task<void()>> orders;
  bool closing = false;
  {
    const std::scoped_lock lock(mutex_);
    orders.swap(orders_);
    closing = closing_;
  }
  for (std::packaged_task<void()>& order : orders) order();
  return !closing;
}

Worker::Cable& Worker::find(int cable, int end) {
  const auto place = cables_.find(cable);
  if (place == cables_.end() || end < 0 || end >= place->second.join.ends()) {
    throw std::runtime_error("the shaper has no such cable or end");
  }
  return place->second;
}

void Worker::add(int cable, std::vector<int> fds, std::uint64_t seed) {
  call([&] {
    for (std::size_t end = 0; end < fds.size(); ++end) {
      const std::uint64_t where = static_cast<std::uint64_t>(cable) << 16 | end;
      epoll_event event{.events = EPOLLIN, .data = {.u64 = where}};
      const int on = 1;
      if (::fcntl(fds[end], F_SETFL, ::fcntl(fds[end], F_GETFL) | O_NONBLOCK) != 0 ||
          ::setsockopt(fds[end], SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) != 0 ||
          ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fds[end], &event) != 0) {
        const int error = errno;
        while (end-- > 0) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fds[end], nullptr);
        errno = error;
        refuse("watch a cable's end");
      }
    }
    const int ends = static_cast<int>(fds.size());
    const std::vector<std::uint64_t> none(fds.size());
    cables_.emplace(cable, Cable{Join(ends, seed), fds, none, none});
  });
}

void Worker::remove(int cable) {
  call([&] {
    const Cable& found = find(cable);
    // Other processes may hold copies of the descriptors: closing them would not end the watch.
    for (const int fd : found.fds) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    close_all(found.fds);
    cables_.erase(cable);
  });
}

void Worker::set(int cable, int end, const Shape& shape) {
  call([&] { find(cable, end).join.set(end, shape); });
}

void Worker::clear(int cable) {
  call([&] { find(cable).join.clear(); });
}

EndCounters Worker::counters(int cable, int end) {
  EndCounters found;
  call([&] {
    Cable& at = find(cable, end);
    const auto place = static_cast<std::size_t>(end);
    at.missed[place] += missed(at.fds[place]);
    found = {at.join.counters(end), at.missed[place], at.unsent[place]};
  });
  return found;
}

void Worker::run() {
  be_prompt();
  for (;;) {
    if (rung_ && !run_orders()) return;
    wait();
    for (auto& [number, cable] : cables_) pump(cable);
  }
}

void Worker::wait() {
  Time next = kNever;
  for (const auto& [number, cable] : cables_) next = std::min(next, cable.join.next());
  const Time begin = nanoseconds(CLOCK_MONOTONIC);
  const Time sleep = pacer_.sleep(begin, next, moved_, spare_processor_.look(begin));
  pollfd readable{epoll_, POLLIN, 0};
  if (sleep != 0) {
    const timespec limit{sleep / kSecond, sleep % kSecond};
    const int woken = ::ppoll(&readable, 1, sleep == kNever ? nullptr : &limit, nullptr);
    if (woken == 0) pacer_.slept(sleep, nanoseconds(CLOCK_MONOTONIC) - begin);
  }
  std::array<epoll_event, kEvents> ready;
  const int count = ::epoll_wait(epoll_, ready.data(), kEvents, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t where = ready[static_cast<std::size_t>(i)].data.u64;
    if (where == kBell) {
      rung_ = true;
    } else {
      receive(where);
    }
  }
  if (sleep == 0 && count == 0) pacer_.polled(nanoseconds(CLOCK_MONOTONIC) - begin);
}

void Worker::receive(std::uint64_t where) {
  const auto place = cables_.find(static_cast<int>(where >> 16));
  if (place == cables_.end()) return;
  Cable& cable = place->second;
  const int end = static_cast<int>(where & 0xFFFF);
  const int fd = cable.fds[static_cast<std::size_t>(end)];
  for (int i = 0; i < kBatch; ++i) {
    iovec memory{spare_.get(), kLargestPacket};
    alignas(cmsghdr) std::byte notes[CMSG_SPACE(sizeof(timespec))];
    msghdr message{};
    message.msg_iov = &memory;
    message.msg_iovlen = 1;
    message.msg_control = notes;
    message.msg_controllen = sizeof notes;
    const ssize_t size = ::recvmsg(fd, &message, MSG_DONTWAIT);
    if (size < 0) return;  // nothing more; or what an interface says when it goes down, once
    if (size == 0) {       // the other side of a socket pair is closed, and would be reported for ever
      ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
      return;
    }
    const auto used = static_cast<std::size_t>(size);
    moved_ = nanoseconds(CLOCK_MONOTONIC);
    Packet packet =
        used <= kCopied
            ? Packet(std::span(spare_.get(), used))
            : Packet(std::exchange(spare_, std::make_unique_for_overwrite<std::byte[]>(kLargestPacket)), used);
    cable.join.arrive(end, std::move(packet), moved_ - age_of(message));
  }
}

void Worker::pump(Cable& cable) {
  const Time now = nanoseconds(CLOCK_MONOTONIC);
  cable.join.pump(now, [&](int end, Packet packet) {
    moved_ = now;
    const std::span<const std::byte> bytes = std::as_const(packet).bytes();
    const auto at = static_cast<std::size_t>(end);
    if (::write(cable.fds[at], bytes.data(), bytes.size()) < 0) ++cable.unsent[at];
  });
}

Shaper::Shaper(int threads) {
  const int half = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2);
  for (int i = 0; i < (threads > 0 ? threads : half); ++i) workers_.push_back(std::make_unique<Worker>());
}

int Shaper::join(std::vector<int> fds, std::uint64_t seed) {
  const int cable = cables_++;
  try {
    worker(cable).add(cable, fds, seed);
  } catch (...) {
    close_all(fds);
    throw;
  }
  return cable;
}

}  // namespace ferrule::shaper
