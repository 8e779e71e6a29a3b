#include "nccl/join/acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nccl/identity.h"
#include "nccl/join/proof.h"
#include "nccl/log.h"
#include "transports/socket.h"
#include "wait/thread.h"

namespace ferrule::nccl {
namespace {

// What a stranger may keep of us, and for how long.
constexpr std::size_t kMaxGuests = 256;
constexpr std::chrono::seconds kHandshake{10};
constexpr std::chrono::seconds kSweep{1};
constexpr int kPortTries = 32;

std::string peer_name(int fd) {
  sockaddr_storage there{};
  socklen_t size = sizeof there;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &size) != 0) return "?";
  Address address{};
  if (there.ss_family == AF_INET) {
    address[10] = address[11] = 0xff;
    std::memcpy(address.data() + 12, &reinterpret_cast<sockaddr_in&>(there).sin_addr, 4);
  } else {
    std::memcpy(address.data(), &reinterpret_cast<sockaddr_in6&>(there).sin6_addr, address.size());
  }
  return text_of(address);
}

bool send_whole(int fd, std::span<const std::byte> bytes) {  // little, on a fresh connection: it has room
  return ::send(fd, bytes.data(), bytes.size(), kSendFlags) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

std::shared_ptr<Acceptor> Acceptor::own(const Settings& settings) {
  static std::mutex mutex;
  static std::weak_ptr<Acceptor> known;
  const std::scoped_lock lock(mutex);
  std::shared_ptr<Acceptor> acceptor = known.lock();
  if (!acceptor) {
    acceptor = std::make_shared<Acceptor>(settings, usable_interfaces(settings));
    known = acceptor;
  }
  return acceptor;
}

Acceptor::Acceptor(const Settings& settings, std::vector<Interface> interfaces)
    : settings_(settings), arrivals_(settings) {
  handle_.process = own_process();
  handle_.host = host_number(settings.host);
  listen_on(interfaces);
  thread_ = start_thread("ferrule-accept", [this] { run(); });
}

Acceptor::~Acceptor() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  wake_.ring();
  thread_.join();
}

// The handle has room for one port: the same one everywhere.
void Acceptor::listen_on(std::span<const Interface> interfaces) {
  for (const Interface& one : interfaces) handle_.address[handle_.addresses++] = one.address;
  for (int i = 0; i < kPortTries; ++i) {
    if (listen_at(interfaces, 0)) return;
  }
  throw Error(kSystemError,
              std::string("cannot listen on ") + text_of(handle_.address[0]) + ": " + std::strerror(errno));
}

bool Acceptor::listen_at(std::span<const Interface> interfaces, std::uint16_t port) {
  listening_.clear();
  for (const Interface& one : interfaces) {
    sockaddr_storage address{};
    socklen_t size = socket_address(one.address, port, address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    Descriptor fd(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid() || ::bind(fd.get(), any, size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) return false;
    if (port == 0) {
      (void)::getsockname(fd.get(), any, &size);
      port = ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                                : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
    }
    listening_.push_back(std::move(fd));
  }
  handle_.port = port;
  return true;
}

Handle Acceptor::open() {
  Handle handle = handle_;
  Nonce random;
  fill_random(random);
  std::memcpy(&handle.listener, random.data(), sizeof handle.listener);
  std::memcpy(&handle.secret, random.data() + 8, sizeof handle.secret);
  const std::scoped_lock lock(mutex_);
  listeners_[handle.listener].secret = handle.secret;
  return handle;
}

void Acceptor::close(std::uint64_t listener) {
  Listener gone;
  const std::scoped_lock lock(mutex_);
  if (const auto found = listeners_.find(listener); found != listeners_.end()) {
    gone = std::move(found->second);
    listeners_.erase(found);
  }
}

std::unique_ptr<ReceiveComm> Acceptor::fetch(std::uint64_t listener) {
  const std::scoped_lock lock(mutex_);
  auto& ready = listeners_[listener].ready;
  if (ready.empty()) return nullptr;
  std::unique_ptr<ReceiveComm> comm = std::move(ready.front());
  ready.pop_front();
  return comm;
}

void Acceptor::run() {
  std::vector<pollfd> polls;
  Clock::time_point swept = Clock::now();
  for (;;) {
    polls.clear();
    for (const Descriptor& fd : listening_) polls.push_back({fd.get(), POLLIN, 0});
    for (const auto& guest : guests_) polls.push_back({guest->fd.get(), POLLIN, 0});
    polls.push_back(wake_.poll_for());
    const bool idle = guests_.empty() && arrivals_.empty();
    const int wait = idle ? -1 : poll_milliseconds(kSweep);
    if (::poll(polls.data(), static_cast<nfds_t>(polls.size()), wait) < 0 && errno != EINTR) return;
    wake_.clear();
    {
      const std::scoped_lock lock(mutex_);
      if (closing_) return;
    }
    std::vector<std::unique_ptr<Guest>> staying;
    for (std::size_t i = 0; i < guests_.size(); ++i) {
      const bool stays = polls[listening_.size() + i].revents == 0 || serve(*guests_[i]);
      if (stays) staying.push_back(std::move(guests_[i]));
    }
    guests_ = std::move(staying);
    for (std::size_t i = 0; i < listening_.size(); ++i) {
      if (polls[i].revents != 0) admit(listening_[i].get());
    }
    const Clock::time_point now = Clock::now();
    if (now - swept >= kSweep) {
      swept = now;
      std::erase_if(guests_, [&](const auto& guest) { return now >= guest->deadline; });
      arrivals_.sweep(now);
    }
  }
}

void Acceptor::admit(int listening) {
  for (;;) {
    Descriptor fd(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return;
    if (guests_.size() >= kMaxGuests) continue;
    set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    auto guest = std::make_unique<Guest>();
    guest->name = peer_name(fd.get());
    guest->fd = std::move(fd);
    guest->deadline = Clock::now() + kHandshake;
    guests_.push_back(std::move(guest));
  }
}

bool Acceptor::serve(Guest& guest) {
  try {
    const bool hello = guest.stage == Stage::hello;
    const std::span<std::byte> whole = hello ? bytes_of(guest.hello) : bytes_of(guest.proof);
    const std::span<std::byte> rest = whole.subspan(guest.got);
    const ssize_t got = ::recv(guest.fd.get(), rest.data(), rest.size(), MSG_DONTWAIT);
    if (got < 0 && would_block(errno)) return true;
    if (got <= 0) return false;
    guest.got += static_cast<std::size_t>(got);
    if (guest.got < whole.size()) return true;
    guest.got = 0;
    return hello ? take_hello(guest) : take_proof(guest);
  } catch (const std::exception& error) {
    warn("a connection from " + guest.name + " was refused: " + error.what());
    return false;
  }
}

bool Acceptor::take_hello(Guest& guest) {
  if (guest.hello.magic != kMagic) return false;  // a stranger, who gets no answer
  fill_random(guest.challenge.nonce);
  guest.stage = Stage::proof;
  return send_whole(guest.fd.get(), bytes_of(guest.challenge));
}

bool Acceptor::take_proof(Guest& guest) {
  std::uint64_t secret = 0;
  bool known = false;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = listeners_.find(guest.hello.listener);
    known = found != listeners_.end();
    if (known) secret = found->second.secret;
  }
  const Key own_key = settings_.key.empty() ? Key(bytes_of(secret)) : Key(settings_.key);
  const bool proved = (known || !settings_.key.empty()) &&
                      equal(guest.proof, proof_of(own_key, Role::client, guest.hello, guest.challenge));
  Verdict verdict;
  verdict.answer = Answer::wrong_key;
  if (!proved) {
    warn("a process at " + guest.name + " does not have this one's FERRULE_KEY, and is not let in");
    (void)send_whole(guest.fd.get(), bytes_of(verdict));
    return false;
  }
  verdict.mac = proof_of(own_key, Role::server, guest.hello, guest.challenge);
  // Its descriptor changes hands only after the verdict, which must be the first on it.
  verdict.answer = known ? arrivals_.check(guest.hello) : Answer::no_listener;
  if (!send_whole(guest.fd.get(), bytes_of(verdict)) || verdict.answer != Answer::welcome) return false;
  std::unique_ptr<ReceiveComm> comm = arrivals_.take(guest.hello, std::move(guest.fd), guest.name);
  if (!comm) return false;
  const std::scoped_lock lock(mutex_);
  const auto found = listeners_.find(guest.hello.listener);
  if (found != listeners_.end()) found->second.ready.push_back(std::move(comm));
  return false;
}

}  // namespace ferrule::nccl
