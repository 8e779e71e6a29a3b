#include "transports/verbs/verbs_pipe.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "assertions.h"

namespace ferrule {
namespace {

constexpr std::size_t kBatch = 16;
// One call moves at most so many frames, so that the other direction gets its turn.
constexpr std::size_t kTurn = 16;
constexpr std::size_t kRepost = 8;
// On a link that loses frames: when a rank that waits in vain asks, and how often before it hears anything.
constexpr Clock::duration kFirstAsk = std::chrono::milliseconds(20);
constexpr int kMostAsks = 5;

VerbsFrameHeader header_of(const std::byte* slot) {
  VerbsFrameHeader header;
  std::memcpy(&header, slot, sizeof header);
  return header;
}

}  // namespace

VerbsPipe::VerbsPipe(std::unique_ptr<QueuePair> queue, const PipeEnd& mine)
    : queue_(std::move(queue)), memory_(queue_->memory()), mine_(mine), ready_(mine.shape.receives()) {
  for (std::uint32_t slot = 0; slot < mine_.shape.receives(); ++slot) idle_.push_back(slot);
  queue_->receive(idle_);
  idle_.clear();
}

void VerbsPipe::meet(const PipeEnd& theirs) {
  peer_token_ = theirs.token;
  frame_bytes_ = std::min(mine_.shape.slot_bytes, theirs.shape.slot_bytes) - sizeof(VerbsFrameHeader);
  window_ = std::min(mine_.shape.slots, theirs.shape.slots);
  out_ = SendWindow(window_);
  in_ = ReceiveWindow(window_);
}

std::size_t VerbsPipe::write(std::span<const ConstBytes> parts) {
  if (out_.full() || out_.behind() || !queue_->has_room()) service();
  std::size_t total = 0;
  std::size_t part = 0;
  std::size_t at = 0;  // in that part
  while (part != parts.size() && parts[part].empty()) ++part;
  for (std::size_t turn = 0; turn < kTurn && part != parts.size() && can_write(); ++turn) {
    const Frame frame = claim();
    std::size_t size = 0;
    while (part != parts.size() && size != frame_bytes_) {
      const std::size_t n = std::min(frame_bytes_ - size, parts[part].size() - at);
      std::memcpy(frame.payload() + size, parts[part].data() + at, n);
      size += n;
      at += n;
      for (; part != parts.size() && at == parts[part].size(); at = 0) ++part;
    }
    head(frame, size, VerbsFrameKind::data);
    post(out_.post());
    total += size;
  }
  return total;
}

VerbsPipe::Frame VerbsPipe::claim() {
  const std::uint64_t number = out_.claim();
  return {number, send_slot(out_.slot(number))};
}

void VerbsPipe::head(const Frame& frame, std::size_t bytes, VerbsFrameKind kind) {
  const VerbsFrameHeader header{peer_token_,    static_cast<std::uint32_t>(frame.number),
                                in_.announce(), static_cast<std::uint16_t>(bytes),
                                kind,           0};
  std::memcpy(frame.slot, &header, sizeof header);
}

void VerbsPipe::post(std::uint64_t frame) {
  const std::byte* const slot = send_slot(out_.slot(frame));
  queue_->send(ConstBytes(slot, sizeof(VerbsFrameHeader) + header_of(slot).bytes));
}

std::size_t VerbsPipe::read(Bytes into) {
  if (ready_count_ == 0) service();
  std::size_t total = 0;
  while (total != into.size() && ready_count_ != 0) {
    const Ready front = ready_[ready_begin_];
    const std::size_t n = std::min(front.bytes - offset_, into.size() - total);
    std::memcpy(into.data() + total, receive_slot(front.slot) + sizeof(VerbsFrameHeader) + offset_, n);
    total += n;
    offset_ += n;
    if (offset_ != front.bytes) break;
    offset_ = 0;
    ready_begin_ = (ready_begin_ + 1) % ready_.size();
    --ready_count_;
    recycle(front.slot, true);
  }
  return total;
}

void VerbsPipe::recycle(std::uint32_t slot, bool data) {
  idle_.push_back(slot);
  if (data) ++idle_data_;
  // Slots that hold no data are not counted: those are posted at once.
  if (!data || idle_.size() >= kRepost || idle_.size() * 2 * kAnnouncements >= window_) repost();
}

void VerbsPipe::repost() {
  if (!broken()) queue_->receive(idle_);
  in_.consume(idle_data_);
  idle_.clear();
  idle_data_ = 0;
  if (in_.due()) tell(VerbsFrameKind::state);
}

bool VerbsPipe::service() {
  std::array<Arrival, kBatch> arrivals;
  const std::size_t n = queue_->poll(arrivals);
  for (std::size_t i = 0; i < n; ++i) take(arrivals[i]);
  if (state_wanted_) tell(VerbsFrameKind::state);
  while (out_.behind() && !broken() && queue_->has_room()) post(out_.post());
  if (!grants_to_send_.empty()) send_grants();
  return n != 0;
}

void VerbsPipe::take(const Arrival& arrival) {
  if (arrival.bytes < sizeof(VerbsFrameHeader)) throw FrameError("sent a frame that is too short");
  const VerbsFrameHeader frame = header_of(receive_slot(arrival.slot));
  if (frame.token != mine_.token) throw FrameError("sent a frame of another connection");
  if (frame.bytes != arrival.bytes - sizeof(VerbsFrameHeader)) {
    if (reliable()) throw FrameError("sent a frame that was cut short");
    recycle(arrival.slot, false);  // one of its packets was lost: then it was lost
    return tell_gap();
  }
  if (!out_.acknowledge(frame.consumed)) throw FrameError("claims to have read what was never sent");
  heard_ = true;
  const bool numbered = frame.kind == VerbsFrameKind::data || frame.kind == VerbsFrameKind::grant;
  if (!numbered) {
    recycle(arrival.slot, false);
    return heed(frame);
  }
  const ReceiveWindow::Order order = in_.arrived(frame.sequence);
  if (order == ReceiveWindow::Order::next && frame.kind == VerbsFrameKind::grant) return heed_grant(arrival);
  if (order == ReceiveWindow::Order::next) {
    FERRULE_ASSERT(ready_count_ < ready_.size());
    ready_[(ready_begin_ + ready_count_++) % ready_.size()] = {arrival.slot, frame.bytes};
    return;
  }
  if (reliable()) throw FrameError("sent frames out of order over a reliable queue pair");
  recycle(arrival.slot, false);
  if (order == ReceiveWindow::Order::gap) tell_gap();
}

void VerbsPipe::tell_gap() {
  if (gap_told_ == in_.expected() + 1) return;
  gap_told_ = in_.expected() + 1;
  tell(VerbsFrameKind::gap);
}

void VerbsPipe::heed(const VerbsFrameHeader& frame) {
  switch (frame.kind) {
    case VerbsFrameKind::hello:
      greeted_ = true;
      break;
    case VerbsFrameKind::gap:
      out_.rewind(frame.sequence);
      break;
    case VerbsFrameKind::state:
      break;
    // On an unreliable queue pair, frames that had been posted by the time of a question have arrived before it, or
    // never will. Who is asked twice knows that of all that was posted before the first time.
    case VerbsFrameKind::ask:
      if (!reliable() && ahead(frame.sequence, was_asked_at_) < 0) out_.rewind(frame.sequence);
      was_asked_at_ = out_.posted();
      tell(VerbsFrameKind::answer);
      break;
    case VerbsFrameKind::answer:
      if (!reliable() && ahead(frame.sequence, asked_at_) < 0) out_.rewind(frame.sequence);
      break;
    default:
      throw FrameError("sent a frame of no known kind");
  }
}

void VerbsPipe::tell(VerbsFrameKind kind) {
  if (broken()) return;
  if (!queue_->has_room()) {
    state_wanted_ = true;  // whatever it was, the other end learns enough from that, or asks
    return;
  }
  if (kind == VerbsFrameKind::state) state_wanted_ = false;
  const VerbsFrameHeader header{peer_token_, in_.expected(), in_.announce(), 0, kind, 0};
  const std::size_t depth = queue_->depth();
  std::byte* const slot =
      send_slot(mine_.shape.slots) + (next_control_++ % depth) * sizeof header;  // depth slots: none is still in use
  std::memcpy(slot, &header, sizeof header);
  queue_->send(ConstBytes(slot, sizeof header));
}

Clock::duration VerbsPipe::prepare_sleep(bool waiting) {
  // A lost frame that the peer misses may keep a third rank waiting for which we wait: serve it even then.
  if (!waiting && reliable()) return Clock::duration::max();
  if (!armed_) {
    queue_->arm();
    armed_ = true;
  }
  // What came before that rings no bell.
  if ((service() || broken()) && waiting) return Clock::duration::zero();
  if (!waiting || reliable()) return Clock::duration::max();
  const Clock::time_point now = Clock::now();
  if (heard_) {
    heard_ = false;
    asked_ = 0;
    ask_next_ = now + kFirstAsk;
  } else if (asked_ < kMostAsks && now >= ask_next_) {
    ask_next_ = now + kFirstAsk * (2 << asked_++);
    asked_at_ = out_.posted();
    tell(VerbsFrameKind::ask);
  }
  return asked_ < kMostAsks ? ask_next_ - now : Clock::duration::max();
}

void VerbsPipe::take_events() {
  queue_->take_events();
  armed_ = false;
}

void VerbsPipe::flush() {
  if (queue_->drained()) return;
  queue_->report();
  tell(VerbsFrameKind::state);
}

}  // namespace ferrule
