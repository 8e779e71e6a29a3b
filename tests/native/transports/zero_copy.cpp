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
#include "transports/tcp/rail.h"
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

// A long frame in the caller's memory goes without a copy, a copied one does not; the header never does.
void rail_asks_for_it() {
  const auto [one, other] = tcp_pair();
  Rail rail(0, true);
  rail.may_hold_memory();
  rail.open(one);
  const std::vector<std::byte> data(ZeroCopy::kLeastBytes, std::byte{5});
  std::thread reader([&, from = other] { read_all(from, 2 * (sizeof(FrameHeader) + data.size())); });
  Outbound outbound;
  const ConstBytes parts[] = {data};
  FrameHeader header;
  header.length = static_cast<std::uint32_t>(data.size());
  const auto write = [&](const OutFrame& frame) {
    Rail::Io io = rail.write(header, {frame.data, frame.size}, &frame);
    CHECK(testing::soon([&] { return (io = rail.flush()) == Rail::Io::done; }));
  };
  write(outbound.copy(parts, data.size()));
  CHECK(!rail.awaits_word());
  ZeroCopy here(other);
  here.enable();
  write(outbound.refer(data));
  CHECK(rail.awaits_word() == here.enabled());
  CHECK(testing::soon([&] { return !rail.holds_memory(); }));
  reader.join();
  ::close(other);
}

// The memory is the channel's until the peer has what was sent and the kernel gave its word, and poll() does not take
// that word for a failure.
void channel_holds_memory_until_the_word(std::size_t rails) {
  std::vector<int> fds[2];
  for (std::size_t i = 0; i < rails; ++i) {
    const auto [one, other] = tcp_pair();
    fds[0].push_back(one);
    fds[1].push_back(other);
  }
  TcpChannel from({0, 1, -1, 7}, fds[0]);
  from.may_hold_memory();
  std::vector<std::byte> data(std::size_t{20} << 20);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 / 7);
  std::vector<std::byte> got(data.size());
  std::thread reader([&] {
    TcpChannel to({1, 0, -1, 7}, fds[1]);
    std::size_t received = 0;
    CHECK(testing::soon([&] {
      while (const std::size_t n = to.try_recv(Bytes(got).subspan(received))) received += n;
      return received == got.size();
    }));
    CHECK(testing::soon([&] {
      to.maintain();
      return to.gone();
    }));
  });
  std::size_t sent = 0;
  CHECK(testing::soon([&] {
    const ConstBytes part[] = {ConstBytes(data).subspan(sent)};
    sent += from.try_send(part);
    return sent == data.size();
  }));
  CHECK(testing::soon([&] {
    std::vector<pollfd> polls;
    from.add_polls({true, false}, polls);
    CHECK(::poll(polls.data(), polls.size(), 0) >= 0);
    for (const pollfd& poll : polls) {
      if (poll.revents != 0) from.on_poll(poll);
    }
    return !from.holds_callers_memory();
  }));
  from.shut_down();
  reader.join();
  CHECK(got == data);
}

}  // namespace

int main() {
  unix_sockets_have_none();
  loopback_copies_and_says_so();
  rail_asks_for_it();
  channel_holds_memory_until_the_word(1);
  channel_holds_memory_until_the_word(3);
  std::puts("zero_copy: ok");
}
