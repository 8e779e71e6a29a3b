// How a group ends: by a failure, by an abort from any thread, or in an orderly way.
#include <algorithm>

#include "collectives_local.h"
#include "group.h"

namespace ferrule {
namespace {

Farewell farewell(std::uint64_t epoch, Op op, const Failure& cause) {
  Farewell words;
  words.header.epoch = epoch;
  words.header.call.op = op;
  words.header.call.reduction = static_cast<std::uint8_t>(cause.status);
  words.header.call.root = cause.rank;
  words.header.call.bytes = words.text.size();
  cause.message.copy(words.text.data(), words.text.size() - 1);
  return words;
}

}  // namespace

Group::~Group() { close(); }

void Group::end(const Failure& cause, double seconds) {
  const std::scoped_lock lock(end_mutex_);
  if (cause_.status == FERRULE_OK) {
    cause_ = cause;
    cause_seconds_ = seconds;
  }
  ended_.store(true, std::memory_order_release);
  // The peers learn the cause and see the sockets end; the descriptors stay ours until close.
  const Farewell words = farewell(epoch_, Op::abort, cause_);
  for (const auto& channel : owned_) {
    channel->say_farewell(words);
    channel->shut_down();
  }
}

void Group::abort(const char* reason) {
  const std::scoped_lock lock(end_mutex_);
  if (cause_.status != FERRULE_OK || closed_) return;
  cause_ = Failure(FERRULE_ABORTED, -1, reason);
  ended_.store(true, std::memory_order_release);
  waiter_->abort();
  // An operation of another thread may be in the middle of a message: then words would be taken for payload.
  const bool quiet = busy_.load(std::memory_order_acquire);
  const Farewell words = farewell(epoch_, Op::abort, Failure(FERRULE_ABORTED, rank_, reason));
  for (const auto& channel : owned_) {
    if (!quiet) channel->say_farewell(words);
    channel->shut_down();
  }
}

ferrule_status Group::close() {
  if (busy_.exchange(true, std::memory_order_acquire)) return FERRULE_BUSY;
  {
    const std::scoped_lock lock(end_mutex_);
    if (!closed_) {
      closed_ = true;
      if (cause_.status == FERRULE_OK) {
        cause_ = Failure(FERRULE_ABORTED, -1, "the group is closed");
        const Farewell words = farewell(epoch_, Op::goodbye, cause_);
        for (const auto& channel : owned_) channel->say_farewell(words);
      }
      ended_.store(true, std::memory_order_release);
      std::ranges::fill(channels_, nullptr);
      local_.reset();
      owned_.clear();
    }
  }
  busy_.store(false, std::memory_order_release);
  return FERRULE_OK;
}

ferrule_failure Group::failure() const {
  const std::scoped_lock lock(end_mutex_);
  return {cause_.status, cause_.rank, cause_seconds_, cause_.message.c_str()};
}

const char* Group::transport(int peer) const {
  if (peer == rank_) return "self";
  const std::scoped_lock lock(end_mutex_);
  const Channel* channel = peer >= 0 && peer < size_ ? channels_[static_cast<std::size_t>(peer)] : nullptr;
  return channel == nullptr ? "closed" : channel->transport();
}

}  // namespace ferrule
