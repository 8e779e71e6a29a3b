// End of a group: by a failure, by an abort from any thread, or in an orderly way.
#include <algorithm>
#include <iterator>

#include "collectives/local.h"
#include "group/group.h"

namespace ferrule {
namespace {

// Time that the heartbeat has to tell why a connection ended, before its peer is blamed.
constexpr std::chrono::milliseconds kWords{250};

CloseNotice close_notice(std::uint64_t epoch, Op op, const Failure& cause) {
  CloseNotice notice;
  notice.header.epoch = epoch;
  notice.header.call.op = op;
  notice.header.call.reduction = static_cast<std::uint8_t>(cause.status);
  notice.header.call.root = cause.rank;
  notice.header.call.bytes = notice.text.size();
  cause.message.copy(notice.text.data(), notice.text.size() - 1);
  return notice;
}

}  // namespace

Group::~Group() {
  maintenance_.reset();
  if (close() == Status::busy) {
    abort("the group was destroyed");
    if (heartbeat_ != nullptr) heartbeat_->leave(seat_);
  }
  for (const auto& one : tracks_) one->queue.stop();
}

void Group::end(const Failure& cause, double seconds, int stream) {
  const std::scoped_lock lock(end_mutex_);
  if (closed_) return;
  if (cause_.status != Status::ok) {
    // Ended from elsewhere, which this operation now has noticed.
    if (cause_seconds_ == 0) cause_seconds_ = seconds;
    return;
  }
  cause_ = cause;
  cause_seconds_ = seconds;
  ended_.store(true, std::memory_order_release);
  told_.notify_all();
  if (heartbeat_ != nullptr) heartbeat_->tell(*seat_, cause);
  // The peers learn the cause and see the sockets end; the descriptors stay ours until close.
  const CloseNotice notice = close_notice(epoch_, Op::abort, told_by(rank_, cause));
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    Track& one = *tracks_[i];
    one.waiter.abort();
    // Another thread may be in the middle of a message: then a notice would be taken for payload.
    const bool entered = static_cast<int>(i) != stream && one.queue.try_enter();
    for (const auto& channel : one.owned) {
      if (entered || static_cast<int>(i) == stream) channel->send_close_notice(notice);
      channel->shut_down();
    }
    if (entered) one.queue.leave();
  }
}

void Group::await_notice() {
  if (heartbeat_ == nullptr || heartbeat_->closed()) return;
  std::unique_lock lock(end_mutex_);
  told_.wait_for(lock, kWords, [this] { return cause_.status != Status::ok; });
}

void Group::abort(std::string reason) { fail(Failure(Status::aborted, -1, std::move(reason))); }

void Group::fail(const Failure& cause) { end(cause, 0, -1); }

Status Group::close() {
  for (const auto& one : tracks_) one->queue.drain();
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    if (tracks_[i]->queue.try_enter()) continue;
    for (std::size_t entered = 0; entered < i; ++entered) tracks_[entered]->queue.leave();
    return Status::busy;
  }
  std::vector<std::unique_ptr<Channel>> channels;  // closing them may take a while: without the lock
  {
    const std::scoped_lock lock(end_mutex_);
    if (!closed_) {
      closed_ = true;
      if (cause_.status == Status::ok) {
        cause_ = Failure(Status::aborted, -1, "the group is closed");
        const CloseNotice notice = close_notice(epoch_, Op::goodbye, cause_);
        for (const auto& one : tracks_) {
          for (const auto& channel : one->owned) channel->send_close_notice(notice);
        }
      }
      ended_.store(true, std::memory_order_release);
      for (const auto& one : tracks_) {
        std::ranges::fill(one->channels, nullptr);
        std::ranges::move(one->owned, std::back_inserter(channels));
        one->owned.clear();
      }
    }
  }
  channels.clear();
  for (const auto& one : tracks_) one->queue.leave();
  if (heartbeat_ != nullptr) heartbeat_->leave(seat_);
  return Status::ok;
}

GroupFailure Group::failure() const {
  const std::scoped_lock lock(end_mutex_);
  return {cause_.status, cause_.rank, cause_seconds_, cause_.message};
}

Status Group::ended_status() const {
  const std::scoped_lock lock(end_mutex_);
  return cause_.status;
}

}  // namespace ferrule
