#include "collectives/exchange.h"

#include <algorithm>
#include <cstring>

#include "assertions.h"
#include "collectives/local.h"

namespace ferrule {

void check_header(Channel& channel, const MessageHeader& expected, const MessageHeader& got, ConstBytes behind) {
  if (got == expected) return;
  const Op op = got.call.op;
  if (got.epoch == expected.epoch && (op == Op::goodbye || op == Op::abort)) throw channel.loss(got, behind);
  if (got.epoch == expected.epoch) throw mismatch(channel.rank(), expected.call, channel.peer(), got.call);
  throw Failure(Status::mismatch, channel.peer(),
                "rank " + std::to_string(channel.peer()) + " sent bytes that belong to no call of this group");
}

bool Outgoing::pump() {
  if (!can_send()) return false;
  if (device.size != 0) return pump_device();
  const ConstBytes head(reinterpret_cast<const std::byte*>(&header), sizeof header);
  ConstBytes parts[3] = {head, first, second.first(second_ready)};
  std::size_t skip = sent;
  for (ConstBytes& part : parts) {
    const std::size_t n = std::min(skip, part.size());
    part = part.subspan(n);
    skip -= n;
  }
  const std::size_t n = channel->try_send(parts);
  begin_at(sent + n);
  return n != 0;
}

bool Outgoing::pump_device() {
  if (sent == 0 && !place) {
    place = channel->take_grant(header.call.sequence);
    if (place && place->bytes != device.size) place.reset();  // a mismatch, of which its header will tell
    if (place) header.call.variant = kPlaced;
  }
  std::size_t n = 0;
  if (place && placed != device.size) {
    n = channel->try_place(device.from(placed), *place, placed);
    placed += n;
    return n != 0;
  }
  const ConstBytes all(reinterpret_cast<const std::byte*>(&header), sizeof header);
  const std::size_t skip = std::min(sent, all.size());
  const ConstBytes head = all.subspan(skip);
  if (place) {
    n = channel->try_send(std::span(&head, 1));
  } else {
    n = channel->try_send_device(head, device.from(sent - skip));
  }
  begin_at(sent + n);
  return n != 0;
}

void Outgoing::begin_at(std::size_t bytes) {
  FERRULE_ASSERT(sent <= bytes && bytes <= total() - second.size() + second_ready);
  sent = bytes;
  channel->mid_message = sent != 0 && !done();
}

Bytes Incoming::target() {
  if (got < sizeof header) return Bytes(reinterpret_cast<std::byte*>(&header), sizeof header).subspan(got);
  const std::size_t at = got - sizeof header;
  if (at >= first_size) return second.subspan(at - first_size);
  if (window.empty()) return {};
  const std::size_t offset = at % window.size();
  const std::size_t room = consumed + window.size() - at;
  return window.subspan(offset, std::min({window.size() - offset, room, first_size - at}));
}

bool Incoming::can_receive() const {
  if (done()) return false;
  if (got < sizeof header) return true;
  const std::size_t at = got - sizeof header;
  return at >= first_size || at < consumed + window.size();
}

bool Incoming::pump_whole() {
  const std::size_t n = channel->try_recv(whole.subspan(got));
  if (n == 0) return false;
  begin_at(got + n);
  return true;
}

void Incoming::begin_at(std::size_t bytes) {
  FERRULE_ASSERT(got <= bytes && bytes <= total());
  const bool in_header = got < sizeof header;
  got = bytes;
  if (!in_header || got < sizeof header) return;
  std::memcpy(&header, whole.data(), sizeof header);
  check_header(*channel, expected, header, whole.first(got).subspan(sizeof header));
}

bool Incoming::pump() {
  if (!whole.empty()) return !done() && pump_whole();
  bool moved = false;
  // A header is followed at once by what lies behind it; afterwards one read per turn, so that sending goes on.
  for (int turn = 0; turn < 2 && can_receive(); ++turn) {
    const std::size_t n = channel->try_recv(target());
    if (n == 0) break;
    moved = true;
    const bool in_header = got < sizeof header;
    got += n;
    if (!in_header) break;
    if (got == sizeof header) {
      if (placed()) expected.call.variant = kPlaced;
      check_header(*channel, expected, header);
      if (placed()) second = {};
    }
  }
  return moved;
}

void Exchange::clear() {
  for (Outgoing& out : outgoing_) out.channel = nullptr;
  for (Incoming& in : incoming_) in.channel = nullptr;
}

Outgoing& Exchange::to(Channel* channel, const MessageHeader& header) {
  Outgoing& out = outgoing_[static_cast<std::size_t>(channel->peer())];
  out = Outgoing{};
  out.channel = channel;
  out.header = header;
  return out;
}

Incoming& Exchange::from(Channel* channel, const MessageHeader& expected) {
  Incoming& in = incoming_[static_cast<std::size_t>(channel->peer())];
  in = Incoming{};
  in.channel = channel;
  in.expected = expected;
  return in;
}

std::size_t Exchange::bytes() const {
  std::size_t total = 0;
  for (const Outgoing& out : outgoing_) total += out.channel == nullptr ? 0 : out.total();
  for (const Incoming& in : incoming_) total += in.channel == nullptr ? 0 : in.total();
  return total;
}

bool Exchange::pump() {
  bool moved = false;
  for (Outgoing& out : outgoing_) {
    if (out.channel != nullptr && out.pump()) moved = true;
  }
  for (Incoming& in : incoming_) {
    if (in.channel != nullptr && in.pump()) moved = true;
  }
  return moved;
}

bool Exchange::finished() const {
  return std::ranges::all_of(outgoing_, [](const Outgoing& out) { return out.channel == nullptr || out.settled(); }) &&
         std::ranges::all_of(incoming_, [](const Incoming& in) { return in.channel == nullptr || in.done(); });
}

Wanted Exchange::wanted(int rank) {
  Incoming& in = incoming_[static_cast<std::size_t>(rank)];
  Outgoing& out = outgoing_[static_cast<std::size_t>(rank)];
  const bool send = out.channel != nullptr && !out.settled() && (out.can_send() || out.done());
  const bool receive = in.channel != nullptr && in.can_receive();
  const Call* const theirs = local_ != nullptr && (receive || send) ? local_->ahead(rank) : nullptr;
  // A peer inside a collective that waits for us serves no channel: unless what we want is there already, we would
  // wait for each other until the deadline.
  if (theirs != nullptr && !(receive && in.pump()) && !(send && out.pump())) {
    const Call& ours = receive ? in.expected.call : out.header.call;
    throw mismatch((receive ? in.channel : out.channel)->rank(), ours, rank, *theirs);
  }
  return {receive, send};
}

}  // namespace ferrule
