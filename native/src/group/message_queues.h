// Point-to-point messages: queues of sends and receives per peer, any number at once, matched in order.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "collectives/exchange.h"
#include "group/queue.h"

namespace ferrule {

class MessageQueues {
 public:
  MessageQueues(std::uint64_t epoch, std::vector<Channel*> channels, Waiter& waiter, Queue& queue);

  // Put up the job's sends and receives. Its work, if any, is finished when all of them are done.
  void add(Job job);
  // Run until the job that was added with `ticket` is done, or all jobs are. Takes in jobs that are queued meanwhile.
  std::uint64_t tickets() const { return tickets_; }
  bool done(std::uint64_t ticket) const;
  template <class Until>
  void run(Until&& until) {
    watch_deadline();
    waiter_.until(
        [&] {
          bool moved = take_queued();
          if (pump()) moved = true;
          if (until()) return Progress::done;
          return moved ? Progress::moved : Progress::idle;
        },
        [this](int rank) { return wanted(rank); });
  }
  bool empty() const { return open_.empty(); }
  // The group ended: nothing goes on.
  void fail(Status status);

 private:
  struct Ticket {
    std::uint64_t number;
    std::size_t left;  // messages
    Job job;
  };
  struct Send {
    Outgoing message;
    std::shared_ptr<Ticket> ticket;
  };
  // Without a ticket: only its header was read, to find out whom a receive from any rank gets its message from. It is
  // the last of its peer then, and belongs to the next receive.
  struct Receive {
    Incoming message;
    std::shared_ptr<Ticket> ticket;
    bool* placed = nullptr;  // see Operation
  };
  struct ReceiveAny {
    MessageHeader expected;
    Bytes into;
    std::shared_ptr<Ticket> ticket;
  };
  struct Peer {
    Channel* channel;
    std::deque<Send> sends;
    std::deque<Receive> receives;
    std::uint64_t sent = 0;  // messages so far
    std::uint64_t received = 0;

    bool receiving() const { return !receives.empty() && receives.front().ticket != nullptr; }
  };

  bool take_queued();
  bool pump();
  Receive& add_receive(Peer& peer, MessageHeader expected, Bytes into, const std::shared_ptr<Ticket>& ticket);
  // Give receives from any rank the messages that have come. A receive that names its rank goes first.
  bool match_any();
  // Whether a header from this peer, or part of it, is here; reads what there is of it.
  bool peek(Peer& peer, bool& moved);
  void end_one(const std::shared_ptr<Ticket>& ticket);
  Wanted wanted(int rank) const;
  // Let the waiter end at the earliest deadline of what is first in line anywhere.
  void watch_deadline();

  const std::uint64_t epoch_;
  Waiter& waiter_;
  Queue& queue_;
  std::vector<Peer> peers_;  // by rank
  std::deque<ReceiveAny> any_;
  std::size_t first_asked_ = 0;  // the rank after the one that was served last
  std::deque<std::shared_ptr<Ticket>> open_;
  std::uint64_t tickets_ = 0;
};

}  // namespace ferrule
