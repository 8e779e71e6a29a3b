#include "nccl/join/dial.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

#include "nccl/log.h"
#include "transports/socket.h"

namespace ferrule::nccl {
namespace {

// How late a word of another thread to stop is heard.
constexpr std::chrono::milliseconds kLook{50};

[[noreturn]] void unreachable(const Route& route, const std::string& why) {
  throw Error(kRemoteError, "cannot connect by " + route.name + ": " + why);
}

void wait_for(int fd, short events, const Route& route, const Until& until) {
  for (;;) {
    if (until.over()) unreachable(route, "no answer in time");
    pollfd one{fd, events, 0};
    const auto left = std::min<Clock::duration>(kLook, until.deadline - Clock::now());
    if (::poll(&one, 1, poll_milliseconds(left)) > 0) return;
  }
}

void read_all(int fd, std::span<std::byte> into, const Route& route, const Until& until) {
  while (!into.empty()) {
    wait_for(fd, POLLIN, route, until);
    const ssize_t got = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (got == 0) unreachable(route, "the other end closed the connection; perhaps it has another FERRULE_KEY");
    if (got < 0 && !would_block(errno)) unreachable(route, std::strerror(errno));
    if (got > 0) into = into.subspan(static_cast<std::size_t>(got));
  }
}

void write_all(int fd, std::span<const std::byte> from, const Route& route, const Until& until) {
  while (!from.empty()) {
    wait_for(fd, POLLOUT, route, until);
    const ssize_t sent = ::send(fd, from.data(), from.size(), kSendFlags);
    if (sent < 0 && !would_block(errno)) unreachable(route, std::strerror(errno));
    if (sent > 0) from = from.subspan(static_cast<std::size_t>(sent));
  }
}

Descriptor connect_to(const Route& route, std::uint16_t port, const Until& until) {
  sockaddr_storage to{};
  const socklen_t size = socket_address(route.to, port, to);
  Descriptor fd(::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) throw Error(kSystemError, std::string("no socket: ") + std::strerror(errno));
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (route.from != Address{}) {
    sockaddr_storage from{};
    const socklen_t length = socket_address(route.from, 0, from);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&from), length) != 0) unreachable(route, std::strerror(errno));
  }
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), size) == 0) return fd;
  if (errno != EINPROGRESS) unreachable(route, std::strerror(errno));
  wait_for(fd.get(), POLLOUT, route, until);
  int error = 0;
  socklen_t length = sizeof error;
  (void)::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) unreachable(route, std::strerror(error));
  return fd;
}

}  // namespace

Dialled dial(const Route& route, std::uint16_t port, Hello hello, Key key, const Until& until) {
  Dialled made{connect_to(route, port, until)};
  const int fd = made.fd.get();
  fill_random(hello.nonce);
  write_all(fd, bytes_of(hello), route, until);
  Challenge challenge;
  read_all(fd, bytes_of(challenge), route, until);
  if (challenge.magic != kMagic) unreachable(route, "what listens there is not this version of Ferrule's plugin");
  Mac proof = proof_of(key, Role::client, hello, challenge);
  write_all(fd, bytes_of(proof), route, until);
  Verdict verdict;
  read_all(fd, bytes_of(verdict), route, until);
  made.answer = verdict.answer;
  if (made.answer == Answer::wrong_key) unreachable(route, "the other end has another FERRULE_KEY");
  if (!equal(verdict.mac, proof_of(key, Role::server, hello, challenge))) {
    unreachable(route, "the other end does not prove that it has our FERRULE_KEY");
  }
  return made;
}

}  // namespace ferrule::nccl
