// Sends without a copy: the kernel's words are understood, and where it copies all the same no more is asked of it.
#include "transports/tcp/zero_copy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "testing.h"
#include "transports/tcp/tcp_channel.h"

using namespace ferrule;

namespace {

std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  CHECK(::listen(listener, 1) == 0);
  CHECK(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(::connect(client, reinterpret_cast<sockaddr*>(&address), size) == 0);
  const int server = ::accept(listener, nullptr, nullptr);
  CHECK(server >= 0);
  ::close(listener);
  return {client, server};
}

void read_all(int fd, std::size_t count) {
  std::vector<char> into(1 << 16);
  while (count != 0) {
    const ssize_t got = ::recv(fd, into.data(), std::min(count, into.size()), 0);
    CHECK(got > 0);
    count -= static_cast<std::size_t>(got);
  }
}

void unix_sockets_have_none() {
  const auto [one, other] = testing::socket_pair();
  ZeroCopy none(one);
  none.enable();
  CHECK(!none.enabled());
  CHECK(none.flag(std::size_t{1} << 30) == 0);
  ::close(one);
  ::close(other);
}

void loopback_copies_and_says_so() {
  const auto [one, other] = tcp_pair();
  ZeroCopy zero_copy(one);
  CHECK(!zero_copy.enabled());
  zero_copy.enable();
  if (!zero_copy.enabled()) {
    std::puts("no MSG_ZEROCOPY here");
  } else {
    const std::vector<char> data(2 * ZeroCopy::kLeastBytes, 'x');
    CHECK(zero_copy.flag(ZeroCopy::kLeastBytes - 1) == 0);
    CHECK(zero_copy.flag(data.size()) != 0);
    std::thread reader([&, from = other] { read_all(from, 3 * data.size()); });
    for (int i = 0; i < 3; ++i) {
      for (std::size_t sent = 0; sent != data.size();) {
        const ssize_t n = ::send(one, data.data() + sent, data.size() - sent, zero_copy.flag(data.size()));
        CHECK(n > 0);
        if (zero_copy.enabled()) zero_copy.sent();
        sent += static_cast<std::size_t>(n);
      }
    }
    CHECK(testing::soon([&] {
      zero_copy.reap();
      return !zero_copy.outstanding();
    }));
    reader.join();
    CHECK(!zero_copy.enabled());  // loopback always copies
    CHECK(zero_copy.flag(data.size()) == 0);
  }
  ::close(one);
  ::close(other);
}

// The memory is the channel's until the kernel gave its word, and poll() does not take that word for a failure.
void channel_holds_memory_until_the_word() {
  const auto [one, other] = tcp_pair();
  TcpChannel channel({0, 1, one, 7});
  channel.may_hold_memory();
  const std::vector<std::byte> data(std::size_t{4} << 20, std::byte{5});
  std::size_t sent = 0;
  std::thread reader([&, from = other] { read_all(from, data.size()); });
  CHECK(testing::soon([&] {
    const ConstBytes part[] = {ConstBytes(data).subspan(sent)};
    sent += channel.try_send(part);
    return sent == data.size();
  }));
  CHECK(testing::soon([&] {
    std::vector<pollfd> polls;
    channel.add_polls({true, false}, polls);
    CHECK(::poll(polls.data(), polls.size(), 0) >= 0);
    if (polls[0].revents != 0) channel.on_poll(polls[0]);
    return !channel.holds_callers_memory();
  }));
  reader.join();
  ::close(other);
}

}  // namespace

int main() {
  unix_sockets_have_none();
  loopback_copies_and_says_so();
  channel_holds_memory_until_the_word();
  std::puts("zero_copy: ok");
}
