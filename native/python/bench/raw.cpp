#include "python/bench/raw.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include "transports/socket.h"

namespace ferrule {
namespace {

using Clock = std::chrono::steady_clock;
using Buffer = std::span<std::byte>;

class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  // Looks at the clock only now and then: reading it takes as long as a small message.
  void check() {
    if (++polls_ % 1024 == 0 && Clock::now() > end_) {
      throw std::runtime_error("the peer of the raw ping-pong does not answer");
    }
  }

 private:
  Clock::time_point end_;
  unsigned polls_ = 0;
};

template <class Body>
std::vector<double> timed(int rounds, Body&& body) {
  std::vector<double> microseconds;
  microseconds.reserve(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    body();
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  return microseconds;
}

template <class Send, class Receive>
std::vector<double> ping_pong(int rounds, bool starts, Send&& send, Receive&& receive) {
  std::vector<double> microseconds = timed(rounds, [&] {
    if (starts) send();
    receive();
    if (!starts) send();
  });
  for (double& each : microseconds) each /= 2;
  return microseconds;
}

Buffer buffer_at(std::uintptr_t address, std::size_t bytes) { return {reinterpret_cast<std::byte*>(address), bytes}; }

bool later(ssize_t result) { return result < 0 && would_block(errno); }

template <class Call>
void whole_message(Buffer buffer, Deadline& deadline, Call&& call) {
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t n = call(buffer.data() + done, buffer.size() - done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (!later(n)) {
      throw std::runtime_error("the socket of the raw ping-pong ended");
    } else {
      deadline.check();
    }
  }
}

// `out` goes into one socket and `in` comes out of one: a long message passes through the buffers piece by piece.
void send_and_receive(int to, Buffer out, int from, Buffer in, Deadline& deadline) {
  std::size_t sent = 0;
  whole_message(in, deadline, [&](auto* at, auto n) {
    if (sent < out.size()) {
      const ssize_t more = ::send(to, out.data() + sent, out.size() - sent, MSG_DONTWAIT);
      if (more > 0)
        sent += static_cast<std::size_t>(more);
      else if (!later(more))
        return more;
    }
    return ::recv(from, at, n, MSG_DONTWAIT);
  });
  whole_message(out.subspan(sent), deadline, [&](auto* at, auto n) { return ::send(to, at, n, MSG_DONTWAIT); });
}

// One direction through shared memory: a ring of chunks and two counters, each on cache lines of its own (two, since
// processors fetch them in pairs). Long messages overlap the copy in with the copy out, chunk by chunk.
constexpr std::size_t kChunk = 8 << 10;
constexpr std::size_t kChunks = 8;

struct OneWay {
  alignas(128) std::atomic<std::uint64_t> written;
  alignas(128) std::atomic<std::uint64_t> taken;
  alignas(128) std::byte chunks[kChunks][kChunk];

  void send(Buffer message, Deadline& deadline) {
    std::uint64_t next = written.load(std::memory_order_relaxed);
    for (std::size_t at = 0; at < message.size(); at += kChunk, ++next) {
      while (next - taken.load(std::memory_order_acquire) == kChunks) deadline.check();
      std::memcpy(chunks[next % kChunks], message.data() + at, std::min(kChunk, message.size() - at));
      written.store(next + 1, std::memory_order_release);
    }
  }

  void receive(Buffer message, Deadline& deadline) {
    std::uint64_t next = taken.load(std::memory_order_relaxed);
    for (std::size_t at = 0; at < message.size(); at += kChunk, ++next) {
      while (written.load(std::memory_order_acquire) == next) deadline.check();
      std::memcpy(message.data() + at, chunks[next % kChunks], std::min(kChunk, message.size() - at));
      taken.store(next + 1, std::memory_order_release);
    }
  }
};

}  // namespace

std::vector<double> raw_tcp_ping_pong(int fd, std::uintptr_t data, std::size_t bytes, int rounds, bool starts,
                                      double timeout) {
  Deadline deadline(timeout);
  const Buffer buffer = buffer_at(data, bytes);
  return ping_pong(
      rounds, starts,
      [&] { whole_message(buffer, deadline, [&](auto* at, auto n) { return ::send(fd, at, n, MSG_DONTWAIT); }); },
      [&] { whole_message(buffer, deadline, [&](auto* at, auto n) { return ::recv(fd, at, n, MSG_DONTWAIT); }); });
}

std::vector<double> raw_tcp_exchange(int fd, std::uintptr_t data, std::uintptr_t other, std::size_t bytes, int rounds,
                                     double timeout) {
  Deadline deadline(timeout);
  const Buffer out = buffer_at(data, bytes);
  const Buffer in = buffer_at(other, bytes);
  return timed(rounds, [&] { send_and_receive(fd, out, fd, in, deadline); });
}

std::vector<double> raw_tcp_alone(int fd, int other_fd, std::uintptr_t data, std::size_t bytes, int rounds,
                                  double timeout) {
  Deadline deadline(timeout);
  const Buffer buffer = buffer_at(data, bytes);
  return ping_pong(
      rounds, true, [&] { send_and_receive(fd, buffer, other_fd, buffer, deadline); },
      [&] { send_and_receive(other_fd, buffer, fd, buffer, deadline); });
}

std::vector<double> raw_shm_ping_pong(std::uintptr_t memory, std::uintptr_t data, std::size_t bytes, int rounds,
                                      bool starts, double timeout) {
  Deadline deadline(timeout);
  const Buffer buffer = buffer_at(data, bytes);
  auto* const ways = reinterpret_cast<OneWay*>(memory);
  OneWay& out = ways[starts ? 0 : 1];
  OneWay& in = ways[starts ? 1 : 0];
  return ping_pong(
      rounds, starts, [&] { out.send(buffer, deadline); }, [&] { in.receive(buffer, deadline); });
}

std::size_t raw_shm_bytes() { return 2 * sizeof(OneWay); }

std::vector<double> raw_memcpy(std::uintptr_t target, std::uintptr_t source, std::size_t bytes, int rounds) {
  auto* const to = reinterpret_cast<void*>(target);
  return timed(rounds, [&] {
    std::memcpy(to, reinterpret_cast<const void*>(source), bytes);
    // The copy must happen although it is never read.
    asm volatile("" : : "r"(to) : "memory");
  });
}

}  // namespace ferrule
