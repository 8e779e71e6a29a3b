#include "nccl/comm/comm.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>

#include "assertions.h"
#include "nccl/comm/keeper.h"
#include "nccl/log.h"

namespace ferrule::nccl {
namespace {

// Looks at sockets and clocks: after so many drives that moved nothing, and no sooner than this after the last.
constexpr unsigned kIdleDrives = 32;
constexpr std::chrono::milliseconds kLook{1};
// A channel's upkeep while it waits, whatever it asks for.
constexpr std::chrono::milliseconds kUpkeep{20};

void replace(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
}

}  // namespace

Comm::Comm(Joined joined) : joined_(std::move(joined)) {
  if (joined_.link) {
    seat_ = joined_.link->take_seat(joined_.id, [this](const Failure& cause) { fail(cause); });
  }
}

Comm::~Comm() { FERRULE_ASSERT(retired_); }

// A word to the peer, for which the end of a connection alone would be this process's death. With requests under way
// that goes by the heartbeat: their memory may be gone, and the channel would still read it.
void Comm::retire() {
  retired_ = true;
  const bool failed = failed_.load(std::memory_order_acquire);
  const bool well = !failed && !waits();
  if (joined_.link) {
    if (!failed && !well) {
      joined_.link->tell(seat_, Failure(Status::aborted, -1, "it closed its comm while requests were under way"));
    }
    joined_.link->leave(seat_);
  }
  const std::scoped_lock lock(mutex_);
  try {
    if (well) {
      CloseNotice notice;
      notice.header.epoch = epoch_of(joined_.id);
      notice.header.call.op = Op::goodbye;
      joined_.channel->send_close_notice(notice);
    } else {
      joined_.channel->shut_down();
    }
    joined_.channel.reset();
  } catch (const std::exception& error) {
    inform(joined_.peer + ": " + error.what());
  }
}

Comm::Memory* Comm::add_memory(const void* data, std::size_t size) {
  const std::scoped_lock lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(data);
  return memory_.emplace_back(std::make_unique<Memory>(Memory{this, begin, begin + size})).get();
}

void Comm::remove_memory(Memory* memory) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(memory_, memory, &std::unique_ptr<Memory>::get);
  if (found == memory_.end()) throw Error(kInternalError, "memory is deregistered that is not registered");
  const bool used = !failed_.load(std::memory_order_acquire) && uses(memory->begin, memory->end);
  memory_.erase(found);
  if (!used) return;
  const Failure cause(Status::aborted, -1, "memory was deregistered while requests used it");
  if (joined_.link) joined_.link->tell(seat_, cause);
  fail(cause);
}

bool Comm::test(Request& request, int* sizes) {
  const std::scoped_lock lock(mutex_);
  if (!request.used) throw Error(kInternalError, "a request is tested that was done before");
  if (!request.done) drive();
  if (!request.done) return false;
  for (std::size_t i = 0; sizes != nullptr && i < request.count; ++i) sizes[i] = static_cast<int>(request.sizes[i]);
  request.used = false;
  release(request);
  return true;
}

void Comm::drive() {
  ++drives_;
  check();
  try {
    if (pump()) {
      idle_ = 0;
      moved_at_ = Clock::now();
    } else if (++idle_ >= kIdleDrives) {
      idle_ = 0;
      look();
    }
  } catch (const Failure& failure) {
    fail(failure);
    check();
  }
}

void Comm::begin_wait() {
  if (!waits()) moved_at_ = Clock::now();
}

void Comm::look() {
  const Clock::time_point now = Clock::now();
  if (now - looked_at_ < kLook) return;
  looked_at_ = now;
  polls_.clear();
  channel().add_polls({true, true}, polls_);
  if (::poll(polls_.data(), static_cast<nfds_t>(polls_.size()), 0) > 0) {
    for (const pollfd& one : polls_) {
      if (one.revents != 0) channel().on_poll(one);
    }
  }
  if (now - maintained_at_ >= std::min<Clock::duration>(kUpkeep, channel().patience())) {
    maintained_at_ = now;
    channel().maintain();
  }
  if (!waits()) return;
  watch();
}

// What came before the peer's end is still to be had; after that, and after its time, a wait is over.
void Comm::watch() {
  if (pump()) {
    moved_at_ = Clock::now();
    return;
  }
  if (!waits()) return;
  if (channel().gone()) throw channel().loss();
  const Clock::duration still = Clock::now() - moved_at_;
  if (still < joined_.timeout) return;
  char text[96];
  std::snprintf(text, sizeof text, "nothing moved for %.1f s, which is more than FERRULE_TIMEOUT allows",
                std::chrono::duration<double>(still).count());
  throw Failure(Status::timeout, -1, text);
}

void Comm::look_after() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || retired_ || failed_.load(std::memory_order_acquire)) return;
  const bool driven = drives_ != drives_before_;
  drives_before_ = drives_;
  if (driven) return;
  try {
    if (pump()) moved_at_ = Clock::now();
    look();
  } catch (const std::exception& error) {
    const auto* const failure = dynamic_cast<const Failure*>(&error);
    fail(failure != nullptr ? *failure : Failure(Status::system, -1, error.what()));
  }
}

void Comm::fail(const Failure& cause) {
  const std::scoped_lock lock(cause_mutex_);
  if (cause_) return;
  cause_ = named(cause);
  failed_.store(true, std::memory_order_release);
}

void Comm::check() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::scoped_lock lock(cause_mutex_);
  throw *cause_;
}

// Ranks of a channel's two ends say nothing to people.
Failure Comm::named(const Failure& failure) const {
  Failure told = failure;
  const int rank = joined_.channel ? joined_.channel->rank() : 0;
  replace(told.message, "rank " + std::to_string(1 - rank), joined_.peer);
  replace(told.message, "rank " + std::to_string(rank), "this process");
  replace(told.message, "the group", "the comm");
  if (told.message.find(joined_.peer) == std::string::npos) told.message = joined_.peer + ": " + told.message;
  return told;
}

}  // namespace ferrule::nccl
