#include "transports/verbs/verbs_channel.h"

#include <sched.h>
#include <sys/socket.h>

#include <cerrno>

namespace ferrule {
namespace {

// Time that a close may wait until all that was sent is with the peer: a dead cable is found broken sooner.
constexpr std::chrono::seconds kLinger{2};
constexpr unsigned kStepsPerLook = 64;

}  // namespace

VerbsChannel::VerbsChannel(const Ends& ends, std::unique_ptr<VerbsPipe> pipe, std::string path)
    : Channel(ends), pipe_(std::move(pipe)), path_(std::move(path)) {}

VerbsChannel::~VerbsChannel() {
  try {
    linger();
  } catch (const std::exception&) {
    // The peer's last frames make no sense, which does not matter any more.
  }
}

// The queue pair dies with this object, and with it whatever is still on its way. Before the socket ends the peer
// must have it all: it takes that end for the end of the data.
void VerbsChannel::linger() {
  const Clock::time_point deadline = Clock::now() + kLinger;
  pipe_->flush();
  for (unsigned step = 1; !pipe_->drained() && !pipe_->broken() && !cut_.load(std::memory_order_relaxed); ++step) {
    pipe_->service();
    if (step % kStepsPerLook != 0) continue;
    drain();
    if (gone_ || departed() || Clock::now() >= deadline) return;
    ::sched_yield();
  }
}

template <class Step>
auto VerbsChannel::guarded(Step&& step) const {
  try {
    return step();
  } catch (const FrameError& error) {
    throw Failure(Status::mismatch, peer_, "rank " + std::to_string(peer_) + " " + error.what() + " on " + path_);
  }
}

void VerbsChannel::broken() {
  drain();
  if (gone_ || departed()) throw loss();
  throw Failure(Status::peer_lost, peer_,
                "rank " + std::to_string(peer_) + " cannot be reached over " + path_ + " (" + pipe_->fault() + ")");
}

template <class Step>
std::size_t VerbsChannel::moved(Step&& step) {
  const std::size_t n = guarded(step);
  if (n == 0 && pipe_->broken()) broken();
  return n;
}

std::size_t VerbsChannel::try_send(std::span<const ConstBytes> parts) {
  return moved([&] { return pipe_->write(parts); });
}

std::size_t VerbsChannel::try_recv(Bytes into) {
  const std::size_t n = guarded([&] { return pipe_->read(into); });
  if (n == 0 && pipe_->broken() && !into.empty()) broken();
  return n;
}

bool VerbsChannel::holds_callers_memory() {
  const bool holds = guarded([&] { return pipe_->holds_device_memory(); });
  if (holds && pipe_->broken()) broken();
  return holds;
}

std::size_t VerbsChannel::try_send_device(ConstBytes head, const DeviceBytes& payload) {
  return moved([&] { return pipe_->write_with(head, payload); });
}

void VerbsChannel::grant(const Grant& offer) {
  guarded([&] { pipe_->grant(offer); });
}

std::optional<Grant> VerbsChannel::take_grant(std::uint64_t sequence) {
  return guarded([&] {
    pipe_->service();
    return pipe_->take_grant(sequence);
  });
}

std::size_t VerbsChannel::try_place(const DeviceBytes& payload, const Grant& offer, std::size_t offset) {
  return moved([&] { return pipe_->place(payload, offer, offset); });
}

void VerbsChannel::add_polls(Wanted wanted, std::vector<pollfd>& into) const {
  into.push_back({fd_, static_cast<short>(POLLIN | kHangup), 0});
  const bool waiting = wanted.receive || wanted.send;
  patience_ = guarded([&] { return pipe_->prepare_sleep(waiting); });
  if (waiting || !pipe_->reliable()) into.push_back({pipe_->event_fd(), POLLIN, 0});
}

Clock::duration VerbsChannel::patience() const { return patience_; }

void VerbsChannel::on_poll(const pollfd& ready) {
  if (ready.fd == pipe_->event_fd()) {
    pipe_->take_events();
    guarded([&] { return pipe_->service(); });
    return;
  }
  drain();
  if (gone_ && !departed()) throw loss();
}

void VerbsChannel::send_close_notice(const CloseNotice& notice) {
  // No payload goes over the socket, so the notice can be mistaken for no other.
  send_notice(notice);
}

void VerbsChannel::shut_down() {
  cut_.store(true, std::memory_order_relaxed);
  Channel::shut_down();
}

}  // namespace ferrule
