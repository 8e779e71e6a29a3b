// Retransmission buffer of a byte stream: every byte is kept until the peer has acknowledged it.
//
// Small ones are copied to a ring, so that a send can return at once; of large ones only the place is remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "transports/tcp/rail_frame.h"

namespace ferrule {

constexpr int kNoRail = -1;

// A piece of the stream that travels as a whole.
struct OutFrame {
  std::uint64_t offset = 0;
  const std::byte* data = nullptr;
  std::uint32_t size = 0;
  std::uint32_t ring = 0;  // bytes of the ring to free with it; 0: the memory is the caller's
  int rail = kNoRail;      // the one it was given to last
  bool ack_now = false;

  std::uint64_t end() const { return offset + size; }
  bool copied() const { return ring != 0; }
  // For a copied frame: room for its header right before `data`, so that one plain write takes both.
  std::byte* headroom() const { return const_cast<std::byte*>(data) - sizeof(FrameHeader); }
};

class Outbound {
 public:
  using ConstBytes = std::span<const std::byte>;

  // The longest frame that can be copied now.
  std::size_t copy_room() const;
  // Append a frame: a copy of the first `size` bytes of `parts`, or a reference.
  OutFrame& copy(std::span<const ConstBytes> parts, std::size_t size);
  OutFrame& refer(ConstBytes bytes);

  // The peer has everything before `offset`.
  void acknowledge(std::uint64_t offset);
  // The frames on that rail may be lost.
  void give_up(int rail);
  // The first frame that has to be sent again, or nullptr.
  OutFrame* lost() const { return lost_.empty() ? nullptr : lost_.front(); }
  void found() { lost_.pop_front(); }

  std::uint64_t begin() const { return acknowledged_; }
  std::uint64_t end() const { return end_; }
  bool refers() const { return referred_ != 0; }
  // Where the first frame in the caller's memory begins; the end where there is none.
  std::uint64_t first_referred() const;

 private:
  OutFrame& append(OutFrame frame);

  std::deque<OutFrame> frames_;  // in the order of the stream; they stay in place until they are acknowledged
  std::deque<OutFrame*> lost_;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t end_ = 0;
  std::size_t referred_ = 0;  // frames in the caller's memory
  std::unique_ptr<std::byte[]> ring_;
  std::size_t ring_head_ = 0;
  std::size_t ring_used_ = 0;
};

}  // namespace ferrule
