// Thread of the heartbeat: it beats, listens, judges, and ends groups.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "liveness/heartbeat.h"
#include "transports/socket.h"

namespace ferrule {
namespace {

// One look reads at most this much from one connection, so that one peer cannot starve the others.
constexpr int kReads = 8;
constexpr std::size_t kReadBytes = 4096;

// Most verdicts on unknown groups that are kept: a split that one rank has finished and another has not.
constexpr std::size_t kEarly = 32;
// Time for which this process remembers that it was stopped: the others' word that it was given up may come later.
constexpr std::chrono::seconds kRemembered{1};

}  // namespace

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    collect_polls();
    const Clock::time_point planned = wake_time();
    lock.unlock();
    (void)::poll(polled_.data(), static_cast<nfds_t>(polled_.size()), poll_milliseconds(planned - Clock::now()));
    wake_.clear();
    lock.lock();
    const Clock::time_point now = Clock::now();
    // A machine that is too busy for this thread, or a process that was stopped, suspects no peer for what it missed.
    looked_ = now;
    const Clock::duration late = std::max(now - planned, Clock::duration::zero());
    if (late > interval_ || now - late_at_ > kRemembered) {
      late_ = late;
      late_at_ = now;
    }
    detector_.excuse(late, now);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (polled_[i].revents != 0) serve(places_[i], now);
    }
    judge(now);
    if (now >= next_beat_) beat(now);
    deliver(lock);
  }
}

Clock::time_point Heartbeat::wake_time() const {
  if (!deliveries_.empty()) return Clock::now();
  return std::min(next_beat_, detector_.next_look());
}

void Heartbeat::collect_polls() {
  polled_.clear();
  places_.clear();
  for (int peer = 0; peer < detector_.size(); ++peer) {
    const auto& wires = wires_[static_cast<std::size_t>(peer)];
    for (std::size_t rail = 0; rail < wires.size(); ++rail) {
      if (wires[rail].fd < 0) continue;
      const int events = POLLIN | (wires[rail].unsent.empty() ? 0 : POLLOUT);
      polled_.push_back({wires[rail].fd, static_cast<short>(events), 0});
      places_.push_back({peer, rail});
    }
  }
  polled_.push_back(wake_.poll_for());
}

void Heartbeat::serve(Place place, Clock::time_point now) {
  Wire& one = wire(place);
  if (one.fd < 0) return;
  flush(one);
  std::byte buffer[kReadBytes];
  for (int turn = 0; turn < kReads; ++turn) {
    const ssize_t got = ::recv(one.fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got == 0) return end_wire(place, 0, now);
    if (got < 0) {
      if (!would_block(errno)) end_wire(place, errno, now);
      return;
    }
    std::span<const std::byte> bytes(buffer, static_cast<std::size_t>(got));
    HeartbeatMessage message;
    while (one.reader.read(bytes, message)) {
      detector_.hear(place.peer, place.rail, message.sequence, now);
      hear(place.peer, message);
    }
    if (one.reader.broken()) return end_wire(place, EPROTO, now);
  }
}

void Heartbeat::end_wire(Place place, int error, Clock::time_point now) {
  ::close(wire(place).fd);
  wire(place) = Wire{};
  detector_.end(place.peer, place.rail, error, now);
}

void Heartbeat::hear(int from, const HeartbeatMessage& message) {
  // A rank that was given up has no say any more, even if it comes back.
  if (detector_.presence(from) == Presence::lost) return;
  const bool known = message.rank >= 0 && message.rank < detector_.size();
  switch (message.kind) {
    case HeartbeatKind::beat:
      return;
    case HeartbeatKind::goodbye:
      return detector_.say_goodbye(from, message.sequence);
    case HeartbeatKind::accuse:
    case HeartbeatKind::lost:
      if (message.epoch != epoch_ || !known) return;
      if (message.rank != rank_) return give_up(message.rank, message.text);
      if (message.kind == HeartbeatKind::lost) given_up(message.text);
      return;
    case HeartbeatKind::verdict:
      for (const SeatPointer& seat : seats_) {
        if (seat->epoch_ == message.epoch) return pass_on(seat, from, message);
      }
      if (early_.size() == kEarly) early_.pop_front();
      early_.push_back({from, message});
      return;
  }
}

void Heartbeat::judge(Clock::time_point now) {
  while (const auto suspect = detector_.suspect(now)) {
    if (suspect->arbiter < 0) {
      give_up(suspect->peer, suspect->reason);
      continue;
    }
    // Should only the connection between us two be cut, the other one suspects us: a third rank tells all the same.
    detector_.ask(suspect->peer, now);
    say(suspect->arbiter, {HeartbeatKind::accuse, Status::ok, suspect->peer, epoch_, 0, suspect->reason});
  }
}

void Heartbeat::beat(Clock::time_point now) {
  if (!parted_) say_to_all({.kind = HeartbeatKind::beat, .epoch = epoch_});
  next_beat_ += interval_;
  if (next_beat_ <= now) next_beat_ = now + interval_;
}

void Heartbeat::give_up(int peer, const std::string& reason) {
  if (detector_.presence(peer) != Presence::alive) return;
  detector_.lose(peer, reason);
  say_to_all({HeartbeatKind::lost, Status::ok, peer, epoch_, 0, reason});
  for (const SeatPointer& seat : seats_) end_group(seat, peer);
}

void Heartbeat::end_group(const SeatPointer& seat, int lost) {
  const int rank = seat->group_rank(lost);
  if (rank < 0) return;
  const std::string reason = "rank " + std::to_string(rank) + " " + detector_.reason(lost);
  deliveries_.push_back({seat, Failure(Status::peer_lost, rank, reason)});
}

void Heartbeat::given_up(const std::string& reason) {
  std::string ours = reason;
  // It may also have been stopped right here, before it read what we are just told.
  const Clock::duration late = std::max(late_, Clock::now() - looked_);
  if (late > interval_) {
    char text[96];
    std::snprintf(text, sizeof text, "; this process was stopped, or got no processor, for %.2f s",
                  std::chrono::duration<double>(late).count());
    ours += text;
  }
  detector_.lose(rank_, ours);
  for (const SeatPointer& seat : seats_) {
    const int rank = seat->group_rank(rank_);
    const Failure told(Status::peer_lost, rank, "rank " + std::to_string(rank) + " " + ours);
    deliveries_.push_back({seat, heard_by(rank, told)});
  }
}

void Heartbeat::pass_on(const SeatPointer& seat, int from, const HeartbeatMessage& verdict) {
  const int sender = seat->group_rank(from);
  if (sender < 0) return;
  const bool known = verdict.rank >= 0 && static_cast<std::size_t>(verdict.rank) < seat->ranks_.size();
  const Failure told(verdict.status, known ? verdict.rank : sender, verdict.text);
  deliveries_.push_back({seat, heard_by(seat->group_rank(rank_), told)});
}

void Heartbeat::deliver(std::unique_lock<std::mutex>& lock) {
  std::vector<Delivery> now;
  now.swap(deliveries_);
  if (now.empty()) return;
  lock.unlock();
  for (const Delivery& one : now) one.seat->deliver(one.cause);
  lock.lock();
}

}  // namespace ferrule
