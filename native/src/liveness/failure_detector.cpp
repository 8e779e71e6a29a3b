#include "liveness/failure_detector.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ferrule {
namespace {

// A peer behind another rank gets as long again, but this many beats at least: should the one between be at fault, it
// is found out first, and another way can be tried. Had the peer itself died, its neighbours would say so.
constexpr int kBeatsForRelays = 2;
// An arbiter may take this part of the limit.
constexpr int kAnswer = 8;

}  // namespace

FailureDetector::FailureDetector(int rank, int size, Clock::duration interval, Clock::duration limit)
    : rank_(rank), interval_(interval), limit_(limit), peers_(static_cast<std::size_t>(size)) {
  peers_[index(rank)].presence = Presence::self;
}

void FailureDetector::connect(int peer, std::size_t rail, std::string name, int via, Time now) {
  Peer& who = peers_[index(peer)];
  if (who.rails.size() <= rail) who.rails.resize(rail + 1);
  Rail& one = who.rails[rail];
  one = Rail{};
  one.connected = true;
  one.heard = now;
  one.via = via;
  one.name = std::move(name);
  if (who.presence == Presence::absent) who.presence = Presence::alive;
}

void FailureDetector::hear(int peer, std::size_t rail, std::uint64_t sequence, Time now) {
  Peer& who = peers_[index(peer)];
  who.rails[rail].heard = now;
  who.asked = Time{};
  // On another rail something older than the goodbye may still be under way.
  if (who.presence == Presence::left && sequence > who.goodbye) who.presence = Presence::alive;
}

void FailureDetector::say_goodbye(int peer, std::uint64_t sequence) {
  Peer& who = peers_[index(peer)];
  if (who.presence != Presence::alive) return;
  who.presence = Presence::left;
  who.goodbye = sequence;
}

void FailureDetector::end(int peer, std::size_t rail, int error, Time now) {
  Rail& one = peers_[index(peer)].rails[rail];
  one.connected = false;
  one.ended = now;
  one.error = error;
}

void FailureDetector::excuse(Clock::duration late, Time now) {
  for (Peer& peer : peers_) {
    for (Rail& rail : peer.rails) rail.heard = std::min(now, rail.heard + late);
  }
}

void FailureDetector::lose(int peer, std::string reason) {
  Peer& who = peers_[index(peer)];
  who.presence = Presence::lost;
  who.reason = std::move(reason);
}

const FailureDetector::Rail* FailureDetector::last_heard(const Peer& peer) const {
  const Rail* last = nullptr;
  for (const Rail& rail : peer.rails) {
    if (rail.connected && (last == nullptr || rail.heard > last->heard)) last = &rail;
  }
  return last;
}

const FailureDetector::Rail* FailureDetector::last_ended(const Peer& peer) const {
  const Rail* last = nullptr;
  for (const Rail& rail : peer.rails) {
    if (!rail.connected && rail.ended != Time{} && (last == nullptr || rail.ended > last->ended)) last = &rail;
  }
  return last;
}

FailureDetector::Time FailureDetector::due(const Peer& peer) const {
  if (peer.presence != Presence::alive) return Time::max();
  const Rail* const heard = last_heard(peer);
  if (heard == nullptr) {
    const Rail* const ended = last_ended(peer);
    if (ended->via < 0) return ended->ended;
    return ended->ended + allowance();
  }
  if (peer.asked != Time{}) return peer.asked + limit_ / kAnswer;
  if (limit_ == Clock::duration::zero()) return Time::max();
  const bool relayed =
      std::ranges::none_of(peer.rails, [](const Rail& rail) { return rail.connected && rail.via < 0; });
  return heard->heard + limit_ + (relayed ? allowance() : Clock::duration::zero());
}

Clock::duration FailureDetector::allowance() const { return std::max(limit_, kBeatsForRelays * interval_); }

std::string FailureDetector::why(const Peer& peer, Time now) const {
  if (const Rail* const heard = last_heard(peer)) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.2f", std::chrono::duration<double>(now - heard->heard).count());
    return std::string("does not answer: no heartbeat for ") + seconds + " s on " + heard->name;
  }
  const Rail& ended = *last_ended(peer);
  const auto on_rail = " on " + ended.name;
  if (ended.via >= 0 && peers_[index(ended.via)].presence == Presence::lost) {
    return "is cut off: rank " + std::to_string(ended.via) + " of the job, which was between, is lost" + on_rail;
  }
  if (ended.error == 0) return "died: its connection ended" + on_rail;
  if (ended.error == ECONNRESET || ended.error == EPIPE) return "died: connection reset" + on_rail;
  return std::string("was cut off: ") + std::strerror(ended.error) + on_rail;
}

std::optional<FailureDetector::Suspect> FailureDetector::suspect(Time now) const {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    if (due(peer) > now) continue;
    std::string reason = why(peer, now);
    const int rank = static_cast<int>(i);
    // Where all connections ended it is gone for sure. One that is only silent may be so to this rank alone.
    const bool silent = last_heard(peer) != nullptr;
    const int other = silent ? arbiter(rank, now) : -1;
    if (silent && other < 0 && size() > 2) reason += ", nor does any other rank: this one may be cut off";
    return Suspect{rank, peer.asked == Time{} ? other : -1, std::move(reason)};
  }
  return std::nullopt;
}

void FailureDetector::ask(int peer, Time now) { peers_[index(peer)].asked = now; }

FailureDetector::Time FailureDetector::next_look() const {
  Time next = Time::max();
  for (const Peer& peer : peers_) next = std::min(next, due(peer));
  return next;
}

int FailureDetector::arbiter(int suspect, Time now) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == suspect || presence(rank) != Presence::alive) continue;
    // Half the limit: a rank that is about to be suspected itself decides nothing.
    const Rail* const heard = last_heard(peers_[index(rank)]);
    if (heard != nullptr && now - heard->heard < limit_ / 2) return rank;
  }
  return -1;
}

Clock::duration FailureDetector::silence(int peer, Time now) const {
  Clock::duration silence = peer == rank_ ? Clock::duration::zero() : Clock::duration::max();
  for (const Rail& rail : peers_[index(peer)].rails) {
    if (rail.heard != Time{}) silence = std::min(silence, now - rail.heard);
  }
  return silence;
}

std::vector<bool> FailureDetector::rails(int peer, Time now) const {
  std::vector<bool> alive;
  for (const Rail& rail : peers_[index(peer)].rails) {
    alive.push_back(rail.connected && (limit_ == Clock::duration::zero() || now - rail.heard < limit_));
  }
  return alive;
}

}  // namespace ferrule
