// The sender's end of a comm: messages into receives that the peer has posted, in the order in which they were.
#pragma once

#include <deque>

#include "nccl/comm/comm.h"
#include "nccl/comm/keeper.h"

namespace ferrule::nccl {

class SendComm final : public Comm {
 public:
  explicit SendComm(Joined joined);
  ~SendComm() override;

  // nullptr: there is no receive yet for that tag in the first group that the peer has posted and that is not full.
  // Throws Failure, or Error where the message is too long for it. The memory must stay until the request is done.
  Request* send(const void* data, std::size_t size, int tag);

 private:
  struct Send : Request {
    Message head;
    const std::byte* data = nullptr;
    std::size_t taken = 0;  // by the channel, of head and data
    std::uint64_t end = 0;  // of it in the stream
  };
  struct Group {
    std::uint32_t sequence;
    std::uint32_t left;
    std::vector<Slot> slots;
    std::vector<bool> filled;
  };

  bool pump() override;
  bool waits() const override { return wanting_ || !queue_.empty() || !sent_.empty(); }
  void release(Request& request) override;
  bool uses(const std::byte* begin, const std::byte* end) const override;
  bool send_queued();
  bool finish_sent();
  bool read_postings();
  Request* want();

  std::vector<Send> requests_;
  std::vector<Send*> free_;
  std::deque<Send*> queue_;   // not all of it with the channel
  std::deque<Send*> sent_;    // whose memory may still be read
  std::uint64_t stream_ = 0;  // bytes that the channel took
  std::deque<Group> groups_;
  bool wanting_ = false;  // NCCL asked for a send that could not begin

  Posting posting_;
  std::array<Slot, kMaxReceives> slots_;
  std::size_t got_ = 0;  // of both
  std::uint32_t expected_ = 0;

  std::shared_ptr<Keeper> keeper_ = Keeper::own();
};

}  // namespace ferrule::nccl
