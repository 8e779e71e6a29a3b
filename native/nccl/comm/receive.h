// The receiver's end of a comm: it posts (grouped) receives to the sender, and takes what comes for them.
#pragma once

#include <deque>
#include <span>

#include "nccl/comm/comm.h"
#include "nccl/comm/keeper.h"

namespace ferrule::nccl {

class ReceiveComm final : public Comm {
 public:
  explicit ReceiveComm(Joined joined);
  ~ReceiveComm() override;

  struct Place {
    void* data;
    std::size_t size;
    int tag;
  };
  // One request for all of them, at most kMaxReceives. nullptr: too many requests are open. Throws Failure.
  Request* receive(std::span<const Place> places);

 private:
  struct Receive : Request {
    std::uint32_t sequence = 0;
    std::size_t left = 0;
    std::array<std::byte*, kMaxReceives> data{};
    std::array<std::size_t, kMaxReceives> room{};
    std::array<bool, kMaxReceives> filled{};
  };

  bool pump() override;
  bool waits() const override { return !open_.empty(); }
  void release(Request& request) override;
  bool uses(const std::byte* begin, const std::byte* end) const override;
  bool post();
  void begin_message();
  void end_message();

  std::vector<Receive> requests_;
  std::vector<Receive*> free_;
  std::deque<Receive*> open_;
  std::vector<std::byte> postings_;  // that the channel has not taken
  std::uint32_t next_ = 0;

  Message head_;
  std::size_t got_ = 0;  // of the head and what follows

  std::shared_ptr<Keeper> keeper_ = Keeper::own();
};

}  // namespace ferrule::nccl
