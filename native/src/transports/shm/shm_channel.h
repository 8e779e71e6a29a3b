// A channel whose data go through a pair of rings in shared memory. Its socket is the doorbell.
#pragma once

#include "transports/channel.h"
#include "transports/shm/shm_segment.h"

namespace ferrule {

class ShmChannel final : public Channel {
 public:
  // `mine` and `theirs`: indices of both ranks in the segment, which outlives the channel.
  ShmChannel(const Ends& ends, const Segment& segment, Stream stream, int mine, int theirs);

  std::size_t try_send(std::span<const ConstBytes> parts) override;
  std::size_t try_recv(Bytes into) override;
  void add_polls(Wanted wanted, std::vector<pollfd>& into) const override;
  void on_poll(const pollfd& ready) override;
  const char* transport() const override { return "shm"; }

  // Wake the peer if it sleeps. Call it after every store that the peer may wait for.
  void notify();

 protected:
  void drain() override { drain_notices(); }

 private:
  std::size_t write(ConstBytes from);

  std::atomic<std::uint32_t>& peer_sleeping_;
  RingHeader& out_;
  std::byte* const out_data_;
  RingHeader& in_;
  std::byte* const in_data_;
  const std::size_t capacity_;
  // Our own ends, and the last we saw of the peer's: its cache line is read only when that looks used up.
  std::uint64_t head_ = 0;
  std::uint64_t seen_tail_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t seen_head_ = 0;
};

}  // namespace ferrule
