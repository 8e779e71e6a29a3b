// What the wire itself can do, for benchmarks: a busy-polled ping-pong on a plain socket.
#include "raw.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <stdexcept>

namespace ferrule {
namespace {

using Clock = std::chrono::steady_clock;

bool later(ssize_t result) { return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR); }

void move(int fd, std::vector<std::byte>& buffer, bool sending, Clock::time_point deadline) {
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t n = sending ? ::send(fd, buffer.data() + done, buffer.size() - done, MSG_DONTWAIT)
                              : ::recv(fd, buffer.data() + done, buffer.size() - done, MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (!later(n)) {
      throw std::runtime_error("the socket of the raw ping-pong ended");
    } else if (Clock::now() > deadline) {
      throw std::runtime_error("the peer of the raw ping-pong does not answer");
    }
  }
}

}  // namespace

std::vector<double> raw_ping_pong(int fd, std::size_t bytes, int rounds, bool starts, double timeout) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  std::vector<std::byte> buffer(bytes);
  std::vector<double> microseconds;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    move(fd, buffer, starts, deadline);
    move(fd, buffer, !starts, deadline);
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / 2);
  }
  return microseconds;
}

}  // namespace ferrule
