#include "group/message_queues.h"

#include <algorithm>

namespace ferrule {

MessageQueues::MessageQueues(std::uint64_t epoch, std::vector<Channel*> channels, Waiter& waiter, Queue& queue)
    : epoch_(epoch), waiter_(waiter), queue_(queue) {
  for (Channel* channel : channels) peers_.push_back(Peer{channel, {}, {}});
}

void MessageQueues::add(Job job) {
  auto ticket = std::make_shared<Ticket>(Ticket{++tickets_, job.operations.size(), std::move(job)});
  open_.push_back(ticket);
  for (const Operation& operation : ticket->job.operations) {
    MessageHeader header{epoch_, {}};
    header.call.op = Op::send;
    header.call.dtype = static_cast<std::uint8_t>(operation.dtype);
    header.call.bytes = operation.count * size_of(operation.dtype);
    const auto bytes = static_cast<std::size_t>(header.call.bytes);
    if (operation.root == kAnyRank) {
      any_.push_back({header, {static_cast<std::byte*>(operation.out), bytes}, ticket});
      continue;
    }
    Peer& peer = peers_[static_cast<std::size_t>(operation.root)];
    if (operation.op == Op::send) {
      header.call.sequence = ++peer.sent;
      Outgoing message;
      message.channel = peer.channel;
      message.header = header;
      if (operation.region != nullptr) {
        message.device = {operation.region, operation.device, bytes};
      } else {
        message.first = {static_cast<const std::byte*>(operation.in), bytes};
      }
      peer.sends.push_back({message, ticket});
    } else {
      Receive& receive = add_receive(peer, header, {static_cast<std::byte*>(operation.out), bytes}, ticket);
      // Where its header is here already, the payload is on its way here, too.
      if (operation.region == nullptr || bytes == 0 || receive.message.got != 0) continue;
      peer.channel->grant(
          {receive.message.expected.call.sequence, operation.device, bytes, operation.region->remote_key});
      receive.message.granted = true;
      receive.placed = operation.placed;
    }
  }
}

MessageQueues::Receive& MessageQueues::add_receive(Peer& peer, MessageHeader expected, Bytes into,
                                                   const std::shared_ptr<Ticket>& ticket) {
  if (peer.receives.empty() || peer.receives.back().ticket != nullptr) {
    peer.receives.emplace_back();
    peer.receives.back().message.channel = peer.channel;
  }
  Receive& receive = peer.receives.back();
  expected.call.sequence = ++peer.received;
  receive.message.expected = expected;
  receive.message.second = into;
  receive.ticket = ticket;
  if (receive.message.got == sizeof(MessageHeader)) check_header(*peer.channel, expected, receive.message.header);
  return receive;
}

bool MessageQueues::done(std::uint64_t ticket) const {
  return std::ranges::none_of(open_, [&](const auto& open) { return open->number == ticket; });
}

bool MessageQueues::take_queued() {
  if (!queue_.has_next()) return false;
  Job job;
  while (queue_.pop(job)) add(std::move(job));
  watch_deadline();
  return true;
}

bool MessageQueues::pump() {
  bool moved = false;
  const std::uint64_t before = open_.size();
  for (Peer& peer : peers_) {
    while (!peer.sends.empty()) {
      Outgoing& message = peer.sends.front().message;
      if (message.pump()) moved = true;
      if (!message.settled()) break;
      end_one(peer.sends.front().ticket);
      peer.sends.pop_front();
      moved = true;
    }
    while (peer.receiving()) {
      Incoming& message = peer.receives.front().message;
      if (message.pump()) moved = true;
      if (!message.done()) break;
      if (message.placed()) *peer.receives.front().placed = true;
      end_one(peer.receives.front().ticket);
      peer.receives.pop_front();
      moved = true;
    }
  }
  if (!any_.empty() && match_any()) moved = true;
  if (open_.size() != before) watch_deadline();
  return moved;
}

bool MessageQueues::match_any() {
  bool moved = false;
  Channel* departed = nullptr;
  bool others = false;  // that may still send something
  const std::size_t first = first_asked_;
  for (std::size_t i = 0; i < peers_.size() && !any_.empty(); ++i) {
    const std::size_t rank = (first + i) % peers_.size();
    Peer& peer = peers_[rank];
    if (peer.channel == nullptr) continue;
    if (!peer.receiving() && peek(peer, moved)) {
      ReceiveAny& any = any_.front();
      if (any.ticket->job.work != nullptr) any.ticket->job.work->came_from(static_cast<int>(rank));
      add_receive(peer, any.expected, any.into, any.ticket);
      any_.pop_front();
      first_asked_ = (rank + 1) % peers_.size();
      moved = others = true;
    } else if (peer.channel->departed() && !peer.receiving()) {
      departed = peer.channel;
    } else {
      others = true;
    }
  }
  if (!any_.empty() && !others && departed != nullptr) throw departed->loss();
  return moved;
}

bool MessageQueues::peek(Peer& peer, bool& moved) {
  if (peer.receives.empty()) {
    peer.receives.emplace_back();
    peer.receives.back().message.channel = peer.channel;
  }
  Incoming& message = peer.receives.front().message;
  const Bytes header(reinterpret_cast<std::byte*>(&message.header), sizeof message.header);
  if (message.got < header.size()) {
    const std::size_t n = peer.channel->try_recv(header.subspan(message.got));
    message.got += n;
    if (n != 0) moved = true;
  }
  if (message.got < header.size()) return false;
  if (message.header.epoch != epoch_ || message.header.call.op != Op::goodbye) return true;
  // Nothing more comes from this rank, which matters only if it is so with all others.
  const MessageHeader notice = message.header;
  peer.receives.pop_front();
  const Failure loss = peer.channel->loss(notice, {});
  if (!peer.channel->departed()) throw loss;
  return false;
}

void MessageQueues::end_one(const std::shared_ptr<Ticket>& ticket) {
  if (--ticket->left != 0) return;
  std::erase(open_, ticket);
  if (ticket->job.work == nullptr) return;
  ticket->job.work->finish(Status::ok);
  queue_.ended();
}

Wanted MessageQueues::wanted(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const bool any = !any_.empty() && peer.channel != nullptr && !peer.channel->departed();
  return {peer.receiving() || any, !peer.sends.empty()};
}

void MessageQueues::watch_deadline() {
  const Ticket* first = nullptr;
  for (const auto& open : open_) {
    if (first == nullptr || open->job.deadline < first->job.deadline) first = open.get();
  }
  if (first == nullptr) return;
  // For the message of a timeout: the message of that ticket that is first in line.
  Call call;
  if (!any_.empty() && any_.front().ticket.get() == first) call = any_.front().expected.call;
  for (const Peer& peer : peers_) {
    if (!peer.receives.empty() && peer.receives.front().ticket.get() == first) {
      call = peer.receives.front().message.expected.call;
    } else if (!peer.sends.empty() && peer.sends.front().ticket.get() == first) {
      call = peer.sends.front().message.header.call;
    }
  }
  waiter_.begin(call, first->job.start, first->job.deadline);
}

void MessageQueues::fail(Status status) {
  for (Peer& peer : peers_) {
    // A channel is there as long as there are messages for it.
    const auto offers = [](const Receive& receive) { return receive.message.granted; };
    const auto reads = [](const Send& send) { return send.message.device.size != 0; };
    if (std::ranges::any_of(peer.receives, offers) || std::ranges::any_of(peer.sends, reads)) peer.channel->revoke();
    peer.sends.clear();
    peer.receives.clear();
  }
  any_.clear();
  std::deque<std::shared_ptr<Ticket>> open;
  open.swap(open_);
  for (const auto& ticket : open) {
    if (ticket->job.work == nullptr) continue;
    ticket->job.work->finish(status);
    queue_.ended();
  }
  Job job;
  while (queue_.pop(job)) {
    job.work->finish(status);
    queue_.ended();
  }
}

}  // namespace ferrule
