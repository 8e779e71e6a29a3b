// Bytes through a relay: all of them, in order, both ways, and what happens when an end goes away.
#include "relay/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#ifdef __linux__
#include <linux/sockios.h>
#include <sys/ioctl.h>
#endif
#include <sys/resource.h>
#include <unistd.h>

#include "testing.h"

namespace {

using ferrule::CopyRelayBuffer;
using ferrule::Relay;
using ferrule::RelayBuffer;

std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  CHECK(::bind(listener, where, size) == 0 && ::listen(listener, 1) == 0);
  CHECK(::getsockname(listener, where, &size) == 0);
  const int first = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(::connect(first, where, size) == 0);
  const int second = ::accept(listener, nullptr, nullptr);
  CHECK(second >= 0);
  ::close(listener);
  return {first, second};
}

// Two ends with a relay between them.
struct Path {
  explicit Path(Relay& relay, std::pair<int, int> (*make)() = tcp_pair) {
    const auto [a, near] = make();
    const auto [far, b] = make();
    left = a;
    right = b;
    relay.add(near, far);
  }
  ~Path() {
    for (const int fd : {left, right}) {
      if (fd >= 0) ::close(fd);
    }
  }
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  int left;
  int right;
};

unsigned char byte_at(std::size_t i, int salt) {
  return static_cast<unsigned char>(i * 31 + i / 251 + static_cast<std::size_t>(salt));
}

void send_pattern(int fd, std::size_t total, int salt) {
  std::vector<unsigned char> piece;
  for (std::size_t at = 0; at < total;) {
    piece.resize(std::min<std::size_t>(total - at, 1 + at % 70000));
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = byte_at(at + i, salt);
    const ssize_t sent = ::send(fd, piece.data(), piece.size(), 0);
    CHECK(sent > 0);
    at += static_cast<std::size_t>(sent);
  }
}

void receive_pattern(int fd, std::size_t total, int salt) {
  std::vector<unsigned char> piece(100000);
  for (std::size_t at = 0; at < total;) {
    const ssize_t got = ::recv(fd, piece.data(), std::min(piece.size(), total - at), 0);
    CHECK(got > 0);
    for (ssize_t i = 0; i < got; ++i)
      CHECK(piece[static_cast<std::size_t>(i)] == byte_at(at + static_cast<std::size_t>(i), salt));
    at += static_cast<std::size_t>(got);
  }
}

void until_delivered(int fd) {
  int left = 1;
  while (left > 0) {
#ifdef __linux__
    CHECK(::ioctl(fd, SIOCOUTQ, &left) == 0);
#else
    socklen_t size = sizeof left;
    CHECK(::getsockopt(fd, SOL_SOCKET, SO_NWRITE, &left, &size) == 0);
#endif
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool at_end(int fd) {
  char byte;
  return ::recv(fd, &byte, 1, 0) <= 0;
}

void both_ways_at_once() {
  constexpr std::size_t kBytes = 5'000'001;
  Relay relay;
  Path one(relay);
  Path two(relay, testing::socket_pair);
  std::vector<std::thread> threads;
  int salt = 0;
  for (const auto& [from, to] :
       {std::pair{one.left, one.right}, {one.right, one.left}, {two.left, two.right}, {two.right, two.left}}) {
    threads.emplace_back(send_pattern, from, kBytes, ++salt);
    threads.emplace_back(receive_pattern, to, kBytes, salt);
  }
  for (std::thread& thread : threads) thread.join();
}

void a_slow_side_makes_the_other_wait() {
  Relay relay;
  Path path(relay);
  std::vector<unsigned char> piece(1 << 16);
  std::size_t taken = 0;
  // Until nothing more goes in for as long as anything could still move on.
  while (true) {
    const ssize_t sent = ::send(path.left, piece.data(), piece.size(), MSG_DONTWAIT);
    if (sent > 0) {
      taken += static_cast<std::size_t>(sent);
      CHECK(taken < (std::size_t{256} << 20));
      continue;
    }
    pollfd writable{path.left, POLLOUT, 0};
    if (::poll(&writable, 1, 300) == 0) break;
  }
  rusage before;
  rusage after;
  ::getrusage(RUSAGE_SELF, &before);
  pollfd writable{path.left, POLLOUT, 0};
  CHECK(::poll(&writable, 1, 300) == 0);
  ::getrusage(RUSAGE_SELF, &after);
  const auto microseconds = [](const rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000L + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  CHECK(microseconds(after) - microseconds(before) < 100'000);  // it sleeps
  std::size_t got = 0;
  while (got < taken) {
    const ssize_t n = ::recv(path.right, piece.data(), piece.size(), 0);
    CHECK(n > 0);
    got += static_cast<std::size_t>(n);
  }
}

void one_side_may_end_before_the_other() {
  Relay relay;
  Path path(relay);
  send_pattern(path.left, 100'000, 1);
  ::shutdown(path.left, SHUT_WR);
  receive_pattern(path.right, 100'000, 1);
  CHECK(at_end(path.right));
  send_pattern(path.right, 100'000, 2);
  receive_pattern(path.left, 100'000, 2);
  ::shutdown(path.right, SHUT_WR);
  CHECK(at_end(path.left));
}

void what_was_said_before_a_death_arrives_before_its_end() {
  Relay relay;
  Path path(relay);
  send_pattern(path.right, 100'000, 1);  // never read: closing resets the connection
  send_pattern(path.left, 30'000, 2);
  until_delivered(path.left);  // what is still on its way when a connection is reset is lost
  ::close(path.left);
  path.left = -1;
  receive_pattern(path.right, 30'000, 2);
  CHECK(at_end(path.right));
}

void closing_lets_talks_end_but_not_for_ever() {
  auto relay = std::make_unique<Relay>();
  Path path(*relay);
  Path endless(*relay);
  std::thread closing([&] { relay.reset(); });
  send_pattern(path.left, 1'000'000, 1);
  ::shutdown(path.left, SHUT_WR);
  receive_pattern(path.right, 1'000'000, 1);
  CHECK(at_end(path.right));
  CHECK(at_end(endless.left) && at_end(endless.right));
  closing.join();
}

void move_all(RelayBuffer& buffer) {
  const auto [in, from] = testing::socket_pair();
  const auto [to, out] = testing::socket_pair();
  CHECK(buffer.empty() && buffer.fill(from) == RelayBuffer::Flow::blocked);
  for (const std::size_t bytes : {1U, 1000U, 60'000U}) {
    send_pattern(in, bytes, 5);
    std::thread reader(receive_pattern, out, bytes, 5);
    for (std::size_t moves = 0; moves == 0 || !buffer.empty() || buffer.fill(from) == RelayBuffer::Flow::moved;
         ++moves) {
      if (!buffer.empty()) CHECK(buffer.drain(to) != RelayBuffer::Flow::ended);
    }
    reader.join();
  }
  ::close(in);
  CHECK(buffer.fill(from) == RelayBuffer::Flow::ended);
  for (const int fd : {from, to, out}) ::close(fd);
}

}  // namespace

int main() {
  both_ways_at_once();
  a_slow_side_makes_the_other_wait();
  one_side_may_end_before_the_other();
  what_was_said_before_a_death_arrives_before_its_end();
  closing_lets_talks_end_but_not_for_ever();
  CopyRelayBuffer buffer;
  move_all(buffer);
  move_all(*RelayBuffer::make());
  std::puts("ok");
  return 0;
}
