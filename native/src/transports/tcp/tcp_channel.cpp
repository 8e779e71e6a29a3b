#include "transports/tcp/tcp_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ferrule {
namespace {

// Time that a closing channel waits for the peer's kernel to have everything. Closing a socket on which an
// acknowledgement comes in resets the connection, and what is still to be sent would be lost.
constexpr std::chrono::seconds kLinger{1};
constexpr std::chrono::milliseconds kLingerLook{10};
// Time that bytes for which no operation waits yet may stay in a socket when nothing else comes: what is waited for may
// stand behind them.
constexpr std::chrono::milliseconds kPark{2};
// Looks at the wires per time limit.
constexpr int kLooks = 8;
// A rail that brings bytes but takes none may just be slower to recover than the others. Time limits that it gets.
constexpr int kOneWay = 4;
// Time limits that a fresh socket may take when the last rail was reset. That a peer died the heartbeat says
// sooner.
constexpr int kReplace = 5;

}  // namespace

TcpChannel::TcpChannel(const Ends& ends, std::span<const int> fds, int best, Clock::duration stall)
    : Channel(ends), stall_(stall), best_(static_cast<std::size_t>(best)), expected_(best_) {
  for (std::size_t i = 0; i < fds.size(); ++i) {
    rails_.push_back(std::make_unique<Rail>(static_cast<int>(i), fds.size() == 1));
    if (fds[i] >= 0) rails_[i]->open(fds[i]);
  }
}

TcpChannel::~TcpChannel() {
  if (notice_.header.call.op == Op::goodbye) linger();
  for (const Arrival& arrival : arrivals_) ::close(arrival.fd);
}

bool TcpChannel::holds_callers_memory() {
  if (!holds_memory()) return false;
  if (arrived_.load(std::memory_order_acquire)) adopt();
  push();
  read_all(false);
  if (owes_acknowledgement()) acknowledge();
  const bool holds = holds_memory();
  if (holds && gone_) throw loss();
  return holds;
}

std::uint64_t TcpChannel::held_bytes() {
  if (!holds_callers_memory()) return 0;
  const auto pins = [](const auto& rail) { return rail->alive() && rail->holds_memory(); };
  if (std::ranges::any_of(rails_, pins)) return outbound_.end();  // which of its bytes the kernel reads is not known
  std::uint64_t first = outbound_.first_referred();
  if (const OutFrame* const lost = outbound_.lost()) first = std::min(first, lost->offset);
  for (const auto& rail : rails_) {
    if (rail->alive() && rail->frame() != nullptr) first = std::min(first, rail->frame()->offset);
  }
  return outbound_.end() - first;
}

bool TcpChannel::holds_memory() {
  // The peer has what a stalled rail still holds: it will not look at it.
  const auto pins = [](const auto& rail) { return rail->alive() && !rail->doubtful() && rail->holds_memory(); };
  return outbound_.refers() || backlog() || std::ranges::any_of(rails_, pins);
}

void TcpChannel::may_hold_memory() {
  for (const auto& rail : rails_) rail->may_hold_memory();
}

void TcpChannel::add_polls(Wanted, std::vector<pollfd>& into) const {
  for (const auto& rail : rails_) {
    if (!rail->alive()) continue;
    const int events = (rail->parked ? 0 : POLLIN) | (rail->busy() ? POLLOUT : 0) | kHangup;
    into.push_back({rail->fd(), static_cast<short>(events), 0});
  }
}

void TcpChannel::on_poll(const pollfd& ready) {
  const auto of_fd = [&](const auto& rail) { return rail->alive() && rail->fd() == ready.fd; };
  const auto found = std::ranges::find_if(rails_, of_fd);
  if (found == rails_.end()) return;
  Rail& rail = **found;
  if ((ready.revents & POLLOUT) != 0) push();
  // poll() calls the kernel's word about memory an error, too. A real one will be there the next time.
  const int error = rail.awaits_word() ? 0 : POLLERR;
  (void)rail.holds_memory();
  const bool ends = (ready.revents & (POLLHUP | error | POLLNVAL | kHangup)) != 0;
  if (ends || (ready.revents & POLLIN) != 0) read(rail, ends);
  // A peer that said goodbye may be needed no more; an operation that needs it finds out by itself.
  if (gone_ && !departed()) throw loss();
}

Clock::duration TcpChannel::patience() const {
  if (arrived_.load(std::memory_order_acquire)) return Clock::duration::zero();
  const bool parked = std::ranges::any_of(rails_, [](const auto& rail) { return rail->alive() && rail->parked; });
  if (parked) return kPark;
  return watched_ || reset_ ? stall_ / kLooks : Clock::duration::max();
}

void TcpChannel::maintain() {
  if (arrived_.load(std::memory_order_acquire)) adopt();
  push();
  const Clock::time_point now = Clock::now();
  for (const auto& rail : rails_) {
    if (rail->alive()) read(*rail, rail->parked && now - rail->parked_since >= kPark);
  }
  // Nothing is under way that could carry it.
  if (told_received_ < inbound_.received()) must_tell_ = true;
  if (owes_acknowledgement()) acknowledge();
  watch(now);
  end_if_reset(now);
  push();
}

void TcpChannel::watch(Clock::time_point now) {
  if (now - watched_at_ < stall_ / kLooks) return;
  watched_at_ = now;
  watched_ = doubts_ = false;
  for (const auto& rail : rails_) {
    if (!rail->alive()) continue;
    rail->look(now);
    const bool stalled = rail->stalled(stall_);
    if (!stalled) {
      rail->set_well();
    } else if (rail->state() == Rail::State::well) {
      rail->suspect(now);
      must_tell_ = true;  // it may hold an acknowledgement, for which the peer waits and sends nothing more
    }
    if (rail->waits()) watched_ = true;
    if (stalled) doubts_ = true;
  }
  const auto is_well = [](const auto& rail) { return rail->state() == Rail::State::well; };
  if (std::ranges::any_of(rails_, is_well)) {
    for (const auto& rail : rails_) {
      if (rail->doubtful()) outbound_.give_up(rail->number());
    }
  }
  // It is the wire, not the peer, when another wire moves. Otherwise all may be cut for a moment: then nothing is
  // gained by giving up the last, and when they are back they need not begin to move all at once. Both ends see the
  // same rails move, so they do not give up different ones.
  for (const auto& rail : rails_) {
    if (!rail->doubtful()) continue;
    const auto moved = [&](const auto& other) { return other->alive() && other->moved_at() > rail->suspect_since(); };
    const bool works_one_way = moved(rail);
    const auto another = [&](const auto& other) { return other != rail && moved(other); };
    if (rail->state() == Rail::State::suspect) {
      if (std::ranges::any_of(rails_, another)) rail->blame(now);
    } else if (now - rail->blamed_since() >= stall_ * (works_one_way ? kOneWay : 1)) {
      lose(*rail, ETIMEDOUT, true);
    }
  }
}

void TcpChannel::step(Rail& rail, Rail::Io io) {
  watched_ = true;
  if (io != Rail::Io::ended) return;
  const int error = rail.error();
  read(rail, true);  // what the peer sent before
  if (rail.alive()) lose(rail, error, false);
}

void TcpChannel::bury(Rail& rail, bool reset) {
  {
    const std::scoped_lock lock(mutex_);
    rail.close(reset);
  }
  rail.deaths.fetch_add(1, std::memory_order_relaxed);
  outbound_.give_up(rail.number());
  must_tell_ = true;  // the last acknowledgement may have been lost with it
}

void TcpChannel::lose(Rail& rail, int error, bool reset) {
  bury(rail, reset);
  if (arrived_.load(std::memory_order_acquire)) return;
  if (std::ranges::any_of(rails_, [](const auto& other) { return other->alive(); })) return;
  // The peer closed it, or its kernel did because it died.
  if (error == 0 || error == EPROTO) return socket_ended(error);
  // Where wires failed fresh rails may come. A reset may be the peer's way to give one up, or to take a fresh one in
  // its place, which is here in a moment; or its kernel's, when it died with bytes unread.
  const auto is_given_up = [](const auto& other) { return other->state() == Rail::State::given_up; };
  const bool given_up = std::ranges::any_of(rails_, is_given_up);
  if (!given_up && (error == ECONNRESET || error == EPIPE)) reset_ = Reset{error, Clock::now()};
}

void TcpChannel::end_if_reset(Clock::time_point now) {
  if (reset_ && now - reset_->at >= stall_ * kReplace) socket_ended(reset_->error);
}

bool TcpChannel::add_rail(int rail, int fd) {
  const std::scoped_lock lock(mutex_);
  if (rail < 0 || static_cast<std::size_t>(rail) >= rails_.size() || shut_) return false;
  arrivals_.push_back({rail, fd});
  arrived_.store(true, std::memory_order_release);
  return true;
}

void TcpChannel::adopt() {
  std::vector<Arrival> arrivals;
  {
    const std::scoped_lock lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (const Arrival& arrival : arrivals) {
    Rail& rail = *rails_[static_cast<std::size_t>(arrival.rail)];
    if (rail.alive()) read(rail, true);
    if (rail.alive()) bury(rail, true);
    const std::scoped_lock lock(mutex_);
    rail.open(arrival.fd);
    if (shut_) ::shutdown(arrival.fd, SHUT_RDWR);
  }
  // Only now: what ended meanwhile was a rail in whose place another stands.
  const std::scoped_lock lock(mutex_);
  reset_.reset();
  arrived_.store(!arrivals_.empty(), std::memory_order_relaxed);
}

std::vector<RailState> TcpChannel::rails() const {
  const std::scoped_lock lock(mutex_);
  std::vector<RailState> states;
  for (const auto& rail : rails_) {
    const auto load = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
    states.push_back({rail->alive(), load(rail->bytes_sent), load(rail->bytes_received), load(rail->deaths),
                      rail->alive() && rail->doubtful()});
  }
  for (const Arrival& arrival : arrivals_) {
    RailState& state = states[static_cast<std::size_t>(arrival.rail)];
    state.alive = true;
    state.stalled = false;
  }
  return states;
}

void TcpChannel::shut_down() {
  const std::scoped_lock lock(mutex_);
  shut_ = true;
  for (const auto& rail : rails_) {
    if (rail->alive()) ::shutdown(rail->fd(), SHUT_RDWR);
  }
}

void TcpChannel::send_close_notice(const CloseNotice& notice) {
  notice_ = notice;
  push();
  for (const auto& rail : rails_) {
    // In the middle of a frame there is no place for it. On several rails it arrives although one may be cut.
    if (!rail->alive() || rail->busy()) continue;
    FrameHeader head = header(FrameKind::close_notice);
    head.length = sizeof notice_;
    head.offset = outbound_.end();
    step(*rail, rail->write(head, std::as_bytes(std::span(&notice_, 1)), nullptr));
  }
}

void TcpChannel::linger() {
  inbound_.withdraw();
  const Clock::time_point end = Clock::now() + kLinger;
  std::vector<pollfd> polls;
  while (!gone_ && Clock::now() < end) {
    maintain();
    const auto delivered = [](const auto& rail) { return !rail->alive() || rail->delivered(); };
    if (!backlog() && std::ranges::all_of(rails_, delivered)) return;
    polls.clear();
    add_polls({}, polls);
    (void)::poll(polls.data(), static_cast<nfds_t>(polls.size()), static_cast<int>(kLingerLook.count()));
  }
}

void TcpChannel::drain() { read_all(true); }

}  // namespace ferrule
