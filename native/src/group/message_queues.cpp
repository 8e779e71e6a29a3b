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
  for (const ferrule_operation& operation : ticket->job.operations) {
    Peer& peer = peers_[static_cast<std::size_t>(operation.root)];
    const bool sends = operation.op == FERRULE_SEND;
    MessageHeader header{epoch_, {}};
    header.call.op = Op::send;
    header.call.dtype = static_cast<std::uint8_t>(operation.dtype);
    header.call.bytes = operation.count * ferrule_dtype_size(operation.dtype);
    header.call.sequence = sends ? ++peer.sent : ++peer.received;
    const auto bytes = static_cast<std::size_t>(header.call.bytes);
    if (sends) {
      Outgoing message;
      message.channel = peer.channel;
      message.header = header;
      message.first = {static_cast<const std::byte*>(operation.in), bytes};
      peer.sends.push_back({message, ticket});
    } else {
      Incoming message;
      message.channel = peer.channel;
      message.expected = header;
      message.second = {static_cast<std::byte*>(operation.out), bytes};
      peer.receives.push_back({message, ticket});
    }
  }
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
    while (!peer.receives.empty()) {
      Incoming& message = peer.receives.front().message;
      if (message.pump()) moved = true;
      if (!message.done()) break;
      end_one(peer.receives.front().ticket);
      peer.receives.pop_front();
      moved = true;
    }
  }
  if (open_.size() != before) watch_deadline();
  return moved;
}

void MessageQueues::end_one(const std::shared_ptr<Ticket>& ticket) {
  if (--ticket->left != 0) return;
  std::erase(open_, ticket);
  if (ticket->job.work == nullptr) return;
  ticket->job.work->finish(FERRULE_OK);
  queue_.ended();
}

Wanted MessageQueues::wanted(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return {!peer.receives.empty(), !peer.sends.empty()};
}

void MessageQueues::watch_deadline() {
  const Ticket* first = nullptr;
  for (const auto& open : open_) {
    if (first == nullptr || open->job.deadline < first->job.deadline) first = open.get();
  }
  if (first == nullptr) return;
  // For its words: the message of that ticket that is first in line.
  Call call;
  for (const Peer& peer : peers_) {
    if (!peer.receives.empty() && peer.receives.front().ticket.get() == first) {
      call = peer.receives.front().message.expected.call;
    } else if (!peer.sends.empty() && peer.sends.front().ticket.get() == first) {
      call = peer.sends.front().message.header.call;
    }
  }
  waiter_.begin(call, first->job.start, first->job.deadline);
}

void MessageQueues::fail(ferrule_status status) {
  for (Peer& peer : peers_) {
    peer.sends.clear();
    peer.receives.clear();
  }
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
