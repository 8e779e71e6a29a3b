#include "wait/wait.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ferrule {
namespace {

// Interval at which a sleeper looks up, for signals that another thread received and for the interrupt hook.
constexpr std::chrono::milliseconds kLookUp{100};
// Steps between two looks at the clock while spinning: a look costs as much as several steps.
constexpr unsigned kStepsPerLook = 16;
// A yield that takes longer gave the core to another thread; one that does not is over in a third of that.
constexpr std::chrono::nanoseconds kYieldAlone{1500};
// A process that only computes keeps the core for longer.
constexpr std::chrono::microseconds kYieldToPeer{300};
// Longer than a peer takes to reduce a chunk and answer: where others want the core too, each sleep costs milliseconds.
constexpr Clock::duration kBulkSpin = std::chrono::microseconds(50);
// The shortest time of yielding, where long ones have not paid: a little more than a sleep takes to end.
constexpr Clock::duration kIdleYield = std::chrono::microseconds(200);

}  // namespace

Waiter::Waiter(const Settings& settings, const std::vector<Channel*>& channels, std::atomic<std::uint32_t>* sleeping)
    : settings_(settings),
      channels_(channels),
      sleeping_(sleeping),
      spin_(settings.spin),
      yield_(settings.yield),
      wanted_(channels.size()) {}

void Waiter::begin(const Call& call, Clock::time_point start, Clock::time_point deadline) {
  call_ = call;
  start_ = start;
  deadline_ = deadline;
}

void Waiter::abort() {
  aborted_.store(true, std::memory_order_release);
  wake();
}

double Waiter::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

Waiter::Idle::~Idle() {
  if (phase == Phase::sleep) waiter.lower_flag();
}

void Waiter::Idle::reset() {
  if (phase == Phase::sleep) waiter.lower_flag();
  phase = Phase::spin;
  steps = 0;
}

void Waiter::Idle::woke() {
  if (haste == Haste::latency) {
    const Clock::duration longest = waiter.settings_.yield;
    const bool too_late = Clock::now() - since > longest;
    waiter.yield_ = too_late ? std::max(waiter.yield_ / 2, std::min(kIdleYield, longest)) : longest;
  }
  reset();
}

void Waiter::Idle::finish() {
  if (haste == Haste::bulk) return;  // how long these waits take says nothing about small messages
  if (waited) waiter.shares_core_ = briefly;
  if (gave_way) {
    waiter.spin_ /= 2;
  } else if (!waiter.shares_core_ && waiter.spin_ < waiter.settings_.spin) {
    waiter.spin_ = std::min(waiter.settings_.spin, waiter.spin_ * 2 + std::chrono::microseconds(1));
  }
}

bool Waiter::Idle::relax() {
  if (phase == Phase::sleep) return true;
  waited = true;
  if (phase == Phase::spin) {
    if (++steps % kStepsPerLook != 0 && waiter.spin_ > Clock::duration::zero()) {
      cpu_relax();
      return false;
    }
    const Clock::time_point now = Clock::now();
    if (steps <= kStepsPerLook) since = now;
    if (now - since < (haste == Haste::bulk ? std::min(waiter.spin_, kBulkSpin) : waiter.spin_)) return false;
    phase = Phase::yield;
    since = now;
  }
  const Clock::time_point before = Clock::now();
  if (haste == Haste::latency) ::sched_yield();
  const Clock::time_point now = Clock::now();
  const bool wanted = now - before >= kYieldToPeer;
  if (now - before > kYieldAlone) {
    gave_way = true;
    if (!wanted) briefly = true;
  }
  // sleep() looks at the deadline once it is known which ranks are missing.
  if (now >= waiter.deadline_) {
    doze();
    return true;
  }
  waiter.check_aborted();
  // Who sleeps gets the core back from a process that computes as soon as there is something to do; who yields, when
  // that one's turn is over.
  if (haste == Haste::latency && !wanted && now - since < waiter.yield_) return false;
  doze();
  return false;
}

void Waiter::Idle::doze() {
  phase = Phase::sleep;
  waiter.raise_flag();
}

void Waiter::raise_flag() {
  if (sleeping_ == nullptr) return;
  sleeping_->store(1, std::memory_order_relaxed);
  // The other half of the handshake in ShmChannel::notify: the step that follows sees what came before a bell that was
  // not rung.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Waiter::lower_flag() {
  if (sleeping_ != nullptr) sleeping_->store(0, std::memory_order_relaxed);
}

void Waiter::check_aborted() const {
  if (aborted()) throw Failure(Status::aborted, -1, "the group was aborted on this rank");
}

void Waiter::time_out() {
  std::string peers;
  int first = -1;
  for (std::size_t rank = 0; rank < wanted_.size(); ++rank) {
    if (!wanted_[rank].receive && !wanted_[rank].send) continue;
    if (first < 0) first = static_cast<int>(rank);
    peers += (peers.empty() ? "" : ", ") + std::to_string(rank);
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", this->seconds());
  std::string text = describe(call_) + " was not done after " + seconds + " s";
  if (!peers.empty()) text += "; waiting for rank " + peers;
  throw Failure(Status::timeout, first, std::move(text));
}

bool Waiter::sleep() {
  polled_.clear();
  polled_channels_.clear();
  Clock::duration patience = kLookUp;
  for (std::size_t rank = 0; rank < channels_.size(); ++rank) {
    Channel* const channel = channels_[rank];
    if (channel == nullptr) continue;
    if (channel->gone()) {
      if (wanted_[rank].receive || wanted_[rank].send) throw channel->loss();
      continue;  // it said goodbye, and nothing is missing from it
    }
    channel->add_polls(wanted_[rank], polled_);
    polled_channels_.resize(polled_.size(), channel);
    patience = std::min(patience, channel->patience());
  }
  polled_channels_.push_back(nullptr);
  polled_.push_back(wake_.poll_for());
  const Clock::time_point before = Clock::now();
  check_aborted();
  if (before >= deadline_) time_out();
  const int nap = poll_milliseconds(std::min(deadline_ - before, patience));
  const int ready = ::poll(polled_.data(), static_cast<nfds_t>(polled_.size()), nap);
  const int error = errno;
  lower_flag();
  if (ready < 0 && error != EINTR) throw Failure(Status::system, -1, std::string("poll: ") + std::strerror(error));
  if (aborted()) throw Failure(Status::aborted, -1, "the group was aborted on this rank");
  if (ready > 0) {
    for (std::size_t i = 0; i < polled_.size(); ++i) {
      if (polled_[i].revents == 0) continue;
      if (polled_channels_[i] != nullptr) {
        polled_channels_[i]->on_poll(polled_[i]);
      } else {
        wake_.clear();
      }
    }
  }
  for (Channel* const channel : channels_) {
    if (channel == nullptr || channel->patience() == Clock::duration::max()) continue;
    channel->maintain();
    if (channel->gone() && !channel->departed()) throw channel->loss();
  }
  if (ready == 0 && settings_.interrupted != nullptr && settings_.interrupted(settings_.interrupted_context) != 0) {
    throw Failure(Status::interrupted, -1, "interrupted by a signal");
  }
  return ready != 0;
}

}  // namespace ferrule
