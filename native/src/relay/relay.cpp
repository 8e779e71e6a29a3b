#include "relay/relay.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "transports/message.h"
#include "transports/socket.h"
#include "wait/thread.h"

namespace ferrule {
namespace {

// One pair's turn: after so many steps the others get theirs.
constexpr int kSteps = 16;
// Time for which a rank that leaves goes on relaying connections that are still in use.
constexpr std::chrono::seconds kLinger{2};

void prepare(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  refuse_signals(fd);
  (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void hang_up(const int (&sides)[2]) {
  for (const int fd : sides) ::close(fd);
}

}  // namespace

void Relay::Pair::pump(int source) {
  Stream& stream = streams[source];
  if (!std::exchange(stream.ready, false)) return;
  const int from = sides[source];
  const int to = sides[1 - source];
  if (stream.held == nullptr) {
    char next;
    if (::recv(from, &next, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && would_block(errno)) return;
    stream.held = RelayBuffer::make();
  }
  for (int step = 0; step < kSteps && !stream.done; ++step) {
    const bool giving = !stream.held->empty();
    const RelayBuffer::Flow flow = giving ? stream.held->drain(to) : stream.held->fill(from);
    if (flow == RelayBuffer::Flow::blocked) return;
    if (flow != RelayBuffer::Flow::ended) continue;
    // The source has given all; or the other side takes nothing more, but may have said something before it ended,
    // which its own stream still brings.
    stream.done = true;
    if (!giving) ::shutdown(to, SHUT_WR);
  }
}

void Relay::add(int a, int b) {
  for (const int fd : {a, b}) prepare(fd);
  const std::scoped_lock lock(mutex_);
  try {
    if (!closing_) {
      if (!thread_.joinable()) thread_ = start_thread("ferrule-relay", [this] { run(); });
      arriving_.push_back(Pair{{a, b}, {}});
      wake_.ring();
      return;
    }
  } catch (...) {
    hang_up({a, b});
    throw;
  }
  hang_up({a, b});
}

void Relay::run() {
  Clock::time_point until = Clock::time_point::max();
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      talking_.splice(talking_.end(), arriving_);
      if (closing_ && until == Clock::time_point::max()) until = Clock::now() + kLinger;
    }
    for (Pair& pair : talking_) {
      for (const int source : {0, 1}) pair.pump(source);
      if (pair.over()) hang_up(pair.sides);
    }
    std::erase_if(talking_, [](const Pair& pair) { return pair.over(); });
    const bool closing = until != Clock::time_point::max();
    if (closing && (talking_.empty() || Clock::now() >= until)) break;
    sleep(until);
  }
  for (Pair& pair : talking_) hang_up(pair.sides);
  talking_.clear();
}

void Relay::sleep(Clock::time_point until) {
  polled_.assign(1, wake_.poll_for());
  waiting_.clear();
  for (Pair& pair : talking_) {
    for (const int source : {0, 1}) {
      // A side from which nothing is wanted is not looked at, not even for its end: that would end no sleep in time,
      // and every later one at once.
      Stream& stream = pair.streams[source];
      if (stream.done) continue;
      polled_.push_back(stream.empty() ? pollfd{pair.sides[source], POLLIN, 0}
                                       : pollfd{pair.sides[1 - source], POLLOUT, 0});
      waiting_.push_back(&stream);
    }
  }
  const int patience = until == Clock::time_point::max() ? -1 : poll_milliseconds(until - Clock::now());
  if (::poll(polled_.data(), static_cast<nfds_t>(polled_.size()), patience) < 0) return;
  for (std::size_t i = 0; i < waiting_.size(); ++i) waiting_[i]->ready = polled_[i + 1].revents != 0;
  if (polled_[0].revents != 0) wake_.clear();
}

void Relay::close() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  wake_.ring();
  if (thread_.joinable()) thread_.join();
}

}  // namespace ferrule
