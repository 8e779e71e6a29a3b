// Frames out of the stream and back into it.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "assertions.h"
#include "transports/tcp/tcp_channel.h"

namespace ferrule {
namespace {

// Up to this size a message is copied, so that the send is over when the sockets have it; above, it stays where it is
// until the peer has it.
constexpr std::size_t kCopyBytes = sizeof(MessageHeader) + (256 << 10);
constexpr std::size_t kReferBytes = 16 << 10;  // shorter parts of a long message are copied all the same
// From this size on a message is cut over the rails, into pieces between these two.
constexpr std::size_t kStripeBytes = 64 << 10;
constexpr std::size_t kMinPieceBytes = 32 << 10;
constexpr std::size_t kPieceBytes = 128 << 10;
// An offer from which reads go straight to their place; below, one read for header and payload is cheaper.
constexpr std::size_t kDirectReadBytes = 64 << 10;
// A payload from which one more read is cheaper than a copy.
constexpr std::size_t kHeadReadBytes = 16 << 10;
// One call moves at most this much, so that the other direction gets its turn while both are busy.
constexpr std::size_t kTurnBytes = 1 << 20;
constexpr std::uint64_t kAcknowledgeBytes = 512 << 10;
// While it waits for a small message, one in so many looks goes to all rails.
constexpr unsigned kLookAround = 8;
// More gaps between the bytes that arrived come from no honest peer.
constexpr std::size_t kMaxGaps = 4096;

}  // namespace

std::size_t TcpChannel::try_send(std::span<const ConstBytes> parts) {
  if (arrived_.load(std::memory_order_acquire)) adopt();
  if (gone_) throw loss();
  Parts left;
  std::size_t count = 0;
  std::size_t total = 0;
  for (const ConstBytes& part : parts) {
    if (part.empty()) continue;
    if (count == left.size()) break;
    left[count++] = part;
    total += part.size();
  }
  if (total == 0) return 0;
  if (doubts_) watch(Clock::now());  // with the other rails' help operations may go on without ever sleeping
  push();
  const std::size_t sent = send_some(left, total);
  if (sent == 0) {
    read_all(false);  // room comes with an acknowledgement
    if (owes_acknowledgement()) acknowledge();
  }
  if (gone_) throw loss();
  return sent;
}

std::size_t TcpChannel::send_some(Parts& parts, std::size_t total) {
  const bool refer = total > kCopyBytes || outbound_.refers();
  const bool stripe = total >= kStripeBytes && rails_.size() > 1;
  std::size_t piece = std::min<std::size_t>(total, kMaxPayloadBytes);
  if (stripe) piece = std::clamp((total + rails_.size() - 1) / rails_.size(), kMinPieceBytes, kPieceBytes);
  std::size_t sent = 0;
  while (sent < total && sent < kTurnBytes) {
    Rail* const rail = stripe ? pick_next() : pick();
    if (rail == nullptr) break;
    OutFrame* const frame = next_frame(parts, total - sent, piece, refer);
    if (frame == nullptr) break;
    sent += frame->size;
    frame->ack_now = sent == total && outbound_.refers();
    give(*rail, *frame);
  }
  return sent;
}

OutFrame* TcpChannel::next_frame(Parts& parts, std::size_t left, std::size_t piece, bool refer) {
  FERRULE_ASSERT(outbound_.end() <= limit_);
  std::size_t size = static_cast<std::size_t>(std::min<std::uint64_t>({left, piece, limit_ - outbound_.end()}));
  ConstBytes& front = *std::ranges::find_if(parts, [](ConstBytes part) { return !part.empty(); });
  OutFrame* frame = nullptr;
  if (refer && front.size() >= kReferBytes) {
    size = std::min(size, front.size());
    if (size != 0) frame = &outbound_.refer(front.first(size));
  } else {
    if (refer) size = std::min(size, front.size());
    size = std::min(size, outbound_.copy_room());
    if (size != 0) frame = &outbound_.copy(parts, size);
  }
  for (ConstBytes& part : parts) {
    const std::size_t n = std::min(size, part.size());
    part = part.subspan(n);
    size -= n;
  }
  return frame;
}

void TcpChannel::give(Rail& rail, OutFrame& frame) {
  frame.rail = rail.number();
  FrameHeader head = header(FrameKind::data);
  head.flags = frame.ack_now ? kAckNow : 0;
  head.length = frame.size;
  head.offset = frame.offset;
  step(rail, rail.write(head, {frame.data, frame.size}, &frame));
}

void TcpChannel::push() {
  for (const auto& rail : rails_) {
    if (rail->alive() && rail->busy()) step(*rail, rail->flush());
  }
  while (OutFrame* const frame = outbound_.lost()) {
    Rail* const rail = pick_next();
    if (rail == nullptr || rail->doubtful()) return;  // it would only have to carry it twice
    outbound_.found();
    frame->ack_now = true;  // the peer may have had it all along
    give(*rail, *frame);
  }
}

bool TcpChannel::usable(const Rail& rail) const {
  if (!rail.alive() || rail.busy()) return false;
  const auto better = [](const auto& other) { return other->state() == Rail::State::well; };
  return !rail.doubtful() || std::ranges::none_of(rails_, better);
}

Rail* TcpChannel::pick() {
  if (usable(*rails_[best_])) return rails_[best_].get();
  return pick_next();
}

Rail* TcpChannel::pick_next() {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    turn_ = (turn_ + 1) % rails_.size();
    if (usable(*rails_[turn_])) return rails_[turn_].get();
  }
  return nullptr;
}

bool TcpChannel::backlog() const {
  // A rail that stalled may keep its rest of a frame that went over another one.
  const auto writes = [](const auto& rail) {
    if (!rail->alive() || !rail->busy()) return false;
    return rail->frame() == nullptr ? !rail->doubtful() : rail->frame()->rail == rail->number();
  };
  return outbound_.lost() != nullptr || std::ranges::any_of(rails_, writes);
}

FrameHeader TcpChannel::header(FrameKind kind) {
  FrameHeader head;
  head.kind = kind;
  head.received = told_received_ = inbound_.received();
  told_taken_ = inbound_.taken();
  head.held = static_cast<std::uint32_t>(told_received_ - told_taken_);
  must_tell_ = false;
  return head;
}

bool TcpChannel::owes_acknowledgement() const {
  if (gone_ || peer_last_) return false;
  const std::uint64_t received = inbound_.received();
  return must_tell_ || (told_received_ < ask_at_ && received >= ask_at_) ||
         received - told_received_ >= kAcknowledgeBytes || inbound_.taken() - told_taken_ >= kAcknowledgeBytes;
}

void TcpChannel::acknowledge() {
  if (Rail* const rail = pick()) step(*rail, rail->write(header(FrameKind::ack), {}, nullptr));
}

std::size_t TcpChannel::try_recv(Bytes into) {
  if (into.empty()) return 0;
  inbound_.offer(into);
  std::size_t got = inbound_.take();
  Rail& expected = *rails_[expected_];
  if (got == 0 && !gone_ && expected.alive() && !expected.unread.empty()) {
    read_inbox(expected, false);  // behind a header, read with it
    got = inbound_.take();
  }
  if (got == 0 && !gone_) {
    if (arrived_.load(std::memory_order_acquire)) adopt();
    const bool one = into.size() < kDirectReadBytes && inbound_.gaps() == 0 && expected.alive();
    if (one) {
      read(expected, false);
      got = inbound_.take();
    }
    if (!one || (got == 0 && ++idle_ % kLookAround == 0 && rails_.size() > 1)) {
      read_all(false);
      got = inbound_.take();
    }
  }
  if (owes_acknowledgement()) acknowledge();
  return got;
}

void TcpChannel::read_all(bool all) {
  for (const auto& rail : rails_) {
    if (rail->alive()) read(*rail, all);
  }
}

void TcpChannel::read(Rail& rail, bool all) {
  std::size_t turn = 0;
  bool more = true;
  while (rail.alive() && !gone_ && read_inbox(rail, all) && more && (all || turn < kTurnBytes)) {
    const std::size_t left = rail.reader.left();
    const std::uint64_t position = rail.reader.position();
    const bool data = left != 0 && rail.reader.header().kind == FrameKind::data;
    const Bytes direct = data ? inbound_.place(position, left) : Bytes();
    // Together with the end of a long payload comes the next header, and nothing that would have to be copied.
    std::size_t ahead = inbound_.offered() >= kDirectReadBytes && (left == 0 || !direct.empty()) ? sizeof(FrameHeader)
                                                                                                 : Rail::kInboxBytes;
    // A frame is as long as the last one, as a rule: of a long one only the head comes by the inbox.
    if (left == 0 && last_length_ >= kHeadReadBytes && !all) {
      ahead = std::min(ahead, sizeof(FrameHeader) + inbound_.offered());
    }
    if (direct.size() < left && !direct.empty()) ahead = 0;
    std::size_t got = 0;
    const Rail::Io io = rail.read(direct, ahead, got);
    if (io == Rail::Io::ended) return lose(rail, rail.error(), false);
    if (got != 0) {
      rail.reader.skip(got);
      inbound_.placed(position, got);
      if (rail.reader.left() == 0) end_frame(rail);
    }
    turn += got + rail.unread.size();
    more = io == Rail::Io::done;
  }
}

FrameBounds TcpChannel::bounds() const {
  return {inbound_.taken() + kRailWindowBytes, outbound_.end(), sizeof(CloseNotice)};
}

bool TcpChannel::read_inbox(Rail& rail, bool all) {
  FrameReader& reader = rail.reader;
  for (;;) {
    const bool data = reader.left() != 0 && reader.header().kind == FrameKind::data;
    const std::uint64_t position = reader.position();
    if (data && !all && inbound_.early(position)) {
      if (!rail.parked) rail.parked_since = Clock::now();
      rail.parked = true;
      return false;
    }
    rail.parked = false;
    ConstBytes payload;
    // What lies behind the offer waits in the inbox for the next one, so that it is copied only once.
    const std::size_t reach = data && !all ? inbound_.reach(position) : rail.unread.size();
    ConstBytes input = rail.unread.first(std::min(reach, rail.unread.size()));
    const std::size_t before = input.size();
    const FrameReader::Step step = reader.step(input, bounds(), payload);
    rail.unread = rail.unread.subspan(before - input.size());
    switch (step) {
      case FrameReader::Step::more:
        return true;
      case FrameReader::Step::broken:
        lose(rail, EPROTO, true);
        return false;
      case FrameReader::Step::header:
        take_header(reader.header());
        break;
      case FrameReader::Step::payload:
        if (data) {
          inbound_.store(position, payload);
        } else {
          const std::size_t at = sizeof(CloseNotice) - reader.left() - payload.size();
          std::memcpy(reinterpret_cast<std::byte*>(&rail.notice) + at, payload.data(), payload.size());
        }
        if (inbound_.gaps() <= kMaxGaps) break;
        lose(rail, EPROTO, true);
        return false;
    }
    if (reader.left() == 0) end_frame(rail);
    if (gone_) return false;
  }
}

void TcpChannel::take_header(const FrameHeader& head) {
  limit_ = std::max(limit_, head.received - head.held + kRailWindowBytes);
  if (head.received <= outbound_.begin()) return;
  for (const auto& rail : rails_) {
    if (rail->frame() != nullptr && rail->frame()->end() <= head.received) rail->disown();
  }
  outbound_.acknowledge(head.received);
}

void TcpChannel::end_frame(Rail& rail) {
  const FrameHeader& head = rail.reader.header();
  if (head.kind == FrameKind::data) {
    expected_ = static_cast<std::size_t>(rail.number());
    last_length_ = head.length;
    const std::uint64_t end = head.offset + head.length;
    if ((head.flags & kAckNow) != 0) {
      if (end <= told_received_) must_tell_ = true;
      ask_at_ = std::max(ask_at_, end);
    }
  } else if (head.kind == FrameKind::close_notice) {
    peer_last_ = PeerLast{rail.notice, head.offset};
  }
  look_for_end();
}

void TcpChannel::look_for_end() {
  if (!peer_last_ || gone_) return;
  // What was sent before a goodbye still comes, perhaps by other rails; with an abort it is over at once.
  const auto& [notice, offset] = *peer_last_;
  if (notice.header.call.op == Op::goodbye && inbound_.received() < offset) return;
  remember(std::as_bytes(std::span(&notice, 1)));
  if (take_close_notice()) return socket_ended(0);
  peer_last_.reset();
}

}  // namespace ferrule
