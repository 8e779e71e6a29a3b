#include "nccl/join/attempt.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "assertions.h"
#include "nccl/identity.h"
#include "nccl/join/arrivals.h"
#include "nccl/log.h"
#include "transports/shm/shm_channel.h"
#include "transports/tcp/tcp_channel.h"
#include "wait/thread.h"

namespace ferrule::nccl {
namespace {

constexpr std::chrono::seconds kAttempt{20};
constexpr std::chrono::seconds kDial{3};  // of which one that gets through needs a few round trips
constexpr std::chrono::milliseconds kPause{50};
constexpr int kRank = 0;

// Something ended meanwhile: all of it once more.
struct Again : Error {
  explicit Again(const std::string& why) : Error(kRemoteError, why) {}
};

}  // namespace

Attempt::Attempt(const Settings& settings, const Handle& handle)
    : settings_(settings), handle_(handle), until_{started_ + kAttempt, stopped_} {
  thread_ = start_thread("ferrule-connect", [this] { run(); });
}

Attempt::~Attempt() {
  stopped_.store(true, std::memory_order_relaxed);
  thread_.join();
}

std::unique_ptr<SendComm> Attempt::result() {
  if (!done_.load(std::memory_order_acquire)) return nullptr;
  if (error_) throw Error(*error_);
  return std::move(comm_);
}

bool Attempt::forgotten() const { return Clock::now() - started_ > 3 * kAttempt; }

void Attempt::run() {
  try {
    comm_ = connect();
  } catch (const Error& error) {
    error_ = std::make_unique<Error>(error);
  } catch (const std::exception& error) {
    error_ = std::make_unique<Error>(kSystemError, error.what());
  }
  done_.store(true, std::memory_order_release);
}

std::unique_ptr<SendComm> Attempt::connect() {
  if (handle_.magic != kMagic || handle_.addresses == 0 || handle_.addresses > kMaxAddresses) {
    throw Error(kInvalidUsage, "the other end is not this version of Ferrule's plugin: install the same on all hosts");
  }
  interfaces_ = usable_interfaces(settings_);
  if (settings_.key.empty() && !is_loopback(handle_.address[0])) {
    throw Error(kInvalidUsage, peer() +
                                   " is on another host, and FERRULE_KEY is not set here: set the same key on all "
                                   "hosts, or start the ranks with `ferrule launch`");
  }
  for (;;) {
    try {
      return connect_once();
    } catch (const Again& again) {
      if (until_.over()) throw Error(again);
      ::poll(nullptr, 0, poll_milliseconds(kPause));
    }
  }
}

std::unique_ptr<SendComm> Attempt::connect_once() {
  Joined joined;
  joined.id = random_id();
  joined.peer = peer();
  joined.timeout = settings_.timeout;
  joined.link = link();
  const bool same_host = handle_.host == host_number(settings_.host);
  const Route direct{{}, handle_.address[0], text_of(handle_.address[0])};
  if (settings_.transport == Choice::shm && !same_host) {
    throw Error(kInvalidUsage, peer() + " is on another host, but FERRULE_TRANSPORT=shm");
  }
  if (!same_host || settings_.transport == Choice::tcp || !join_by_memory(joined, direct)) {
    join_by_cables(joined, joined.link ? joined.link->open_routes() : std::vector{direct});
  }
  inform("connected to " + joined.peer + " by " + joined.channel->transport());
  return std::make_unique<SendComm>(std::move(joined));
}

std::shared_ptr<PeerLink> Attempt::link() {
  if (handle_.process == own_process()) return nullptr;
  return Links::own().get(handle_.process, [this] { return make_link(); });
}

std::shared_ptr<PeerLink> Attempt::make_link() {
  const std::span<const Address> theirs(handle_.address.data(), handle_.addresses);
  auto made = std::make_shared<PeerLink>(random_id(), kRank, settings_.silence);
  if (handle_.host == host_number(settings_.host)) {
    made->routes = {{{}, theirs.front(), text_of(theirs.front())}};
  } else {
    made->routes = routes(interfaces_, theirs);
  }
  std::string problem;
  bool any = false;
  for (std::size_t i = 0; i < made->routes.size(); ++i) {
    Hello ours = hello(Purpose::beats, {});
    ours.rail = static_cast<std::uint8_t>(i);
    ours.rails = static_cast<std::uint8_t>(made->routes.size());
    ours.link = made->id();
    try {
      Dialled beats = dial(made->routes[i], handle_.port, ours, key(), until_.sooner(kDial));
      if (beats.answer != Answer::welcome) throw Error(kRemoteError, "the other end closed its listener");
      made->add(i, beats.fd.release(), made->routes[i].name);
      any = true;
    } catch (const Error& error) {
      problem = error.what();
      warn(problem);
    }
  }
  if (!any) throw Error(kRemoteError, peer() + " cannot be reached: " + problem);
  return made;
}

void Attempt::throw_no_link(const Joined& joined) const {
  Links::own().drop(handle_.process, joined.link);
  throw Again("the heartbeat with " + peer() + " ended");
}

bool Attempt::join_by_memory(Joined& joined, const Route& route) {
  Hello ours = hello(Purpose::shm, joined);
  ours.token = random_id();
  joined.segment = Segment::create(ours.token.data(), 2);
  const std::string& place = joined.segment->place();
  FERRULE_ASSERT(place.size() < ours.place.size());
  std::ranges::copy(place, ours.place.begin());
  Dialled made = dial(route, handle_.port, ours, key(), until_.sooner(kDial));
  joined.segment->hide();
  if (made.answer == Answer::no_link) throw_no_link(joined);
  if (made.answer == Answer::no_memory && settings_.transport == Choice::automatic) {
    joined.segment.reset();
    return false;
  }
  if (made.answer != Answer::welcome) throw Error(kRemoteError, peer() + " does not share memory, or has gone");
  joined.channel = std::make_unique<ShmChannel>(Ends{kRank, 1, made.fd.release(), epoch_of(joined.id)}, *joined.segment,
                                                Stream::messages, kRank, 1);
  return true;
}

void Attempt::join_by_cables(Joined& joined, const std::vector<Route>& over) {
  if (over.empty()) throw Again("no route to " + peer() + " is open");
  const std::size_t count = std::min(kMaxRails, over.size() * static_cast<std::size_t>(settings_.sockets));
  std::vector<Descriptor> rails;
  for (std::size_t i = 0; i < count; ++i) {
    Hello ours = hello(Purpose::tcp, joined);
    ours.rail = static_cast<std::uint8_t>(i);
    ours.rails = static_cast<std::uint8_t>(count);
    try {
      Dialled rail = dial(over[i % over.size()], handle_.port, ours, key(), until_.sooner(kDial));
      if (rail.answer == Answer::no_link) throw_no_link(joined);
      if (rail.answer != Answer::welcome) throw Error(kRemoteError, peer() + " closed its listener");
      rails.push_back(std::move(rail.fd));
    } catch (const Again&) {
      throw;
    } catch (const Error& error) {
      if (until_.over()) throw;
      throw Again(error.what());  // by those routes that are left then
    }
  }
  std::vector<int> fds;
  for (Descriptor& rail : rails) fds.push_back(rail.release());
  joined.channel = std::make_unique<TcpChannel>(Ends{kRank, 1, -1, epoch_of(joined.id)}, fds);
}

Key Attempt::key() const {
  if (!settings_.key.empty()) return settings_.key;
  return std::as_bytes(std::span(&handle_.secret, 1));
}

Hello Attempt::hello(Purpose purpose, const Joined& joined) const {
  Hello ours;
  ours.purpose = purpose;
  ours.listener = handle_.listener;
  ours.comm = joined.id;
  if (joined.link) ours.link = joined.link->id();
  return ours;
}

std::string Attempt::peer() const {
  return "the process at " + text_of(handle_.address[0]) + " port " + std::to_string(handle_.port);
}

Attempts& Attempts::own() {
  static auto* const attempts = new Attempts;  // threads may use it until the very end of the process
  return *attempts;
}

std::unique_ptr<SendComm> Attempts::connect(const Settings& settings, Handle& handle) {
  std::shared_ptr<Attempt> attempt;
  std::vector<std::shared_ptr<Attempt>> given_up;  // their threads are waited for without the lock
  {
    const std::scoped_lock lock(mutex_);
    for (auto each = attempts_.begin(); each != attempts_.end();) {
      const bool forgotten = each->second->forgotten();
      if (forgotten) given_up.push_back(std::move(each->second));
      each = forgotten ? attempts_.erase(each) : std::next(each);
    }
    if (handle.attempt == 0) {
      handle.attempt = ++last_;
      Handle asked = handle;
      asked.attempt = 0;
      attempts_[handle.attempt] = std::make_shared<Attempt>(settings, asked);
    }
    const auto found = attempts_.find(handle.attempt);
    if (found == attempts_.end()) throw Error(kRemoteError, "a connection was asked for again long after it was made");
    attempt = found->second;
  }
  const auto end = [&] {
    const std::scoped_lock lock(mutex_);
    attempts_.erase(handle.attempt);
    handle.attempt = 0;
  };
  try {
    std::unique_ptr<SendComm> comm = attempt->result();
    if (comm) end();
    return comm;
  } catch (const Error&) {
    end();
    throw;
  }
}

}  // namespace ferrule::nccl
