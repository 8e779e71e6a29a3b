// Wires for the tests of rails: TCP connections over loopback that can be cut, restored, ended and slowed down.
#pragma once

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

namespace rails_test {

using TestClock = std::chrono::steady_clock;

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::abort();
}

template <class Condition>
void wait_for(Condition&& condition, const char* what) {
  const auto deadline = TestClock::now() + std::chrono::seconds(60);
  while (!condition()) {
    require(TestClock::now() < deadline, what);
    ::poll(nullptr, 0, 1);
  }
}

inline std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  require(::bind(listener, any, size) == 0 && ::listen(listener, 1) == 0, "listen");
  require(::getsockname(listener, any, &size) == 0, "getsockname");
  const int one = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(::connect(one, any, size) == 0, "connect");
  const int other = ::accept(listener, nullptr, nullptr);
  require(other >= 0, "accept");
  ::close(listener);
  return {one, other};
}

// One connection whose ends are given away; it keeps a second descriptor of each to do harm by.
class Wire {
 public:
  Wire() {
    std::tie(ends[0], ends[1]) = tcp_pair();
    for (int i = 0; i < 2; ++i) handles_[i] = ::dup(ends[i]);
  }
  ~Wire() {
    for (const int handle : handles_) ::close(handle);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // Nothing that is sent to that end arrives: its socket drops every segment, acknowledgements too.
  void cut(int end) {
    sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program{1, &drop};
    require(::setsockopt(handles_[end], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0, "cut");
  }
  void cut() {
    cut(0);
    cut(1);
  }
  void restore() {
    const int unused = 0;
    for (const int handle : handles_) {
      require(::setsockopt(handle, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused) == 0, "restore");
    }
  }
  void finish() { ::shutdown(handles_[0], SHUT_RDWR); }
  void reset() {
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    require(::connect(handles_[0], &nobody, sizeof nobody) == 0, "disconnect");
  }
  void garble(int end) {
    const char words[] = "these are not the bytes that a peer sends";
    require(::send(handles_[end], words, sizeof words, MSG_NOSIGNAL) == sizeof words, "garble");
  }

  int ends[2];

 private:
  int handles_[2];
};

// Two connections and a thread between them that carries so many bytes per second each way.
class SlowWire {
 public:
  explicit SlowWire(double bytes_per_second) : rate_(bytes_per_second) {
    const auto [a, inner_a] = tcp_pair();
    const auto [b, inner_b] = tcp_pair();
    ends[0] = a;
    ends[1] = b;
    const int little = 64 << 10;  // what the relay swallows shall count little
    for (const int fd : {inner_a, inner_b}) (void)::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    threads_.emplace_back([this, from = inner_a, to = inner_b] { carry(from, to); });
    threads_.emplace_back([this, from = inner_b, to = inner_a] { carry(from, to); });
    inner_ = {inner_a, inner_b};
  }
  ~SlowWire() {
    for (const int fd : inner_) ::shutdown(fd, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : inner_) ::close(fd);
  }
  SlowWire(const SlowWire&) = delete;
  SlowWire& operator=(const SlowWire&) = delete;

  int ends[2];

 private:
  void carry(int from, int to) const {
    std::vector<char> bytes(16 << 10);
    auto due = TestClock::now();
    for (;;) {
      const ssize_t n = ::recv(from, bytes.data(), bytes.size(), 0);
      if (n <= 0) break;
      due = std::max(due, TestClock::now() - std::chrono::milliseconds(2));
      due += std::chrono::duration_cast<TestClock::duration>(
          std::chrono::duration<double>(static_cast<double>(n) / rate_));
      const auto early = due - TestClock::now();
      if (early > std::chrono::milliseconds(1)) std::this_thread::sleep_for(early);
      for (ssize_t sent = 0; sent < n;) {
        const ssize_t m = ::send(to, bytes.data() + sent, static_cast<std::size_t>(n - sent), MSG_NOSIGNAL);
        if (m <= 0) return;
        sent += m;
      }
    }
    ::shutdown(to, SHUT_WR);
  }

  const double rate_;
  std::vector<int> inner_;
  std::vector<std::thread> threads_;
};

}  // namespace rails_test
