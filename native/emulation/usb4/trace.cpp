#include "emulation/usb4/trace.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace ferrule::usb4 {

namespace {

constexpr std::uint32_t kEnhancedPacket = 6;
constexpr std::size_t kFixed = 32;  // a block without its packet
constexpr std::size_t kEnough = 1 << 18;

}  // namespace

Trace::~Trace() { close(); }

void Trace::close() {
  flush();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Trace::open(int fd, std::size_t most) {
  close();
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) throw std::system_error(errno, std::generic_category(), "cannot open the trace");
  fd_ = own;
  most_ = most;
}

void Trace::add(std::uint32_t interface, const TraceHeader& header, std::span<const std::byte> data) {
  if (fd_ < 0) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::uint64_t time =
      static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
  const std::size_t kept = std::min(data.size(), most_);
  const std::size_t captured = sizeof header + kept;
  const std::size_t padded = (captured + 3) / 4 * 4;
  const auto total = static_cast<std::uint32_t>(kFixed + padded);
  const std::array<std::uint32_t, 7> head{kEnhancedPacket,
                                          total,
                                          interface,
                                          static_cast<std::uint32_t>(time >> 32),
                                          static_cast<std::uint32_t>(time),
                                          static_cast<std::uint32_t>(captured),
                                          static_cast<std::uint32_t>(sizeof header + data.size())};
  const std::size_t start = waiting_.size();
  waiting_.resize(start + total);
  std::byte* out = waiting_.data() + start;
  std::memcpy(out, head.data(), sizeof head);
  std::memcpy(out + sizeof head, &header, sizeof header);
  std::copy_n(data.begin(), kept, out + sizeof head + sizeof header);
  std::memcpy(out + total - sizeof total, &total, sizeof total);
  ++packets_;
  if (waiting_.size() >= kEnough) flush();
}

void Trace::flush() {
  const std::byte* from = waiting_.data();
  std::size_t left = waiting_.size();
  while (fd_ >= 0 && left > 0) {
    const ssize_t written = ::write(fd_, from, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {  // no room: the trace ends here, in a whole block or not
      lost_ += packets_;
      ::close(fd_);
      fd_ = -1;
      break;
    }
    from += written;
    left -= static_cast<std::size_t>(written);
  }
  waiting_.clear();
  packets_ = 0;
}

}  // namespace ferrule::usb4
