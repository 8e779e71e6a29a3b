// Flow control of a verbs pipe: frames in flight, credits and free slots. Pure counting.
//
// A receive is always posted for what the peer may send: it stops when as many frames are not known to be consumed
// as the receiver has slots for data. Receivers tell what they consumed with every frame that they send, and, where
// they send none, by a frame of its own each time that kAnnouncements-th part of the slots is free again. Between two
// of those at least that many data frames were consumed, so never more than kAnnouncements of them lie unread at the
// peer: slots beside those for data suffice, and they need no counting.
#pragma once

#include <algorithm>
#include <cstdint>

#include "assertions.h"

namespace ferrule {

constexpr std::uint32_t kAnnouncements = 4;
// And one for each of: hello, the notice before an orderly end, and some asking on lossy links.
constexpr std::uint32_t kControlSlots = kAnnouncements + 4;

// The counts have 64 bits here and 32 on the wire.
inline std::int64_t ahead(std::uint32_t wire, std::uint64_t of) {
  return static_cast<std::int32_t>(wire - static_cast<std::uint32_t>(of));
}

class SendWindow {
 public:
  // `first`: the number of the first frame, which both ends know.
  explicit SendWindow(std::uint32_t slots, std::uint64_t first = 0)
      : slots_(slots), consumed_(first), posted_(first), next_(first) {}

  bool full() const { return next_ - consumed_ == slots_; }
  // A frame's number, and its slot, which holds it until the peer has consumed it.
  std::uint64_t claim() {
    FERRULE_ASSERT(!full());
    return next_++;
  }
  std::uint32_t slot(std::uint64_t frame) const { return static_cast<std::uint32_t>(frame % slots_); }
  // Frames in [posted, next) are to be posted, for the first time or again.
  bool behind() const { return posted_ != next_; }
  std::uint64_t post() {
    FERRULE_ASSERT(consumed_ <= posted_ && posted_ < next_);
    return posted_++;
  }
  std::uint64_t posted() const { return posted_; }

  // False when that cannot be true.
  bool acknowledge(std::uint32_t consumed) {
    const std::int64_t more = ahead(consumed, consumed_);
    if (more <= 0) return true;  // an older frame's word
    if (static_cast<std::uint64_t>(more) > next_ - consumed_) return false;
    consumed_ += static_cast<std::uint64_t>(more);
    posted_ = std::max(posted_, consumed_);
    return true;
  }
  // The peer expects that frame: everything from there on has to be posted again.
  void rewind(std::uint32_t expected) {
    const std::int64_t missing = -ahead(expected, posted_);
    if (missing > 0) posted_ = std::max(posted_ - std::min(posted_, static_cast<std::uint64_t>(missing)), consumed_);
  }

 private:
  std::uint32_t slots_;
  std::uint64_t consumed_;
  std::uint64_t posted_;
  std::uint64_t next_;
};

class ReceiveWindow {
 public:
  // `slots`: how many frames the sender's window has.
  explicit ReceiveWindow(std::uint32_t slots, std::uint64_t first = 0)
      : step_((slots + kAnnouncements - 1) / kAnnouncements), expected_(first), consumed_(first), announced_(first) {}

  enum class Order { next, seen, gap };
  Order arrived(std::uint32_t sequence) {
    const std::int64_t distance = ahead(sequence, expected_);
    if (distance != 0) return distance < 0 ? Order::seen : Order::gap;
    ++expected_;
    return Order::next;
  }
  std::uint32_t expected() const { return static_cast<std::uint32_t>(expected_); }

  void consume(std::uint64_t frames) {
    FERRULE_ASSERT(frames <= expected_ - consumed_);
    consumed_ += frames;
  }
  bool due() const { return consumed_ - announced_ >= step_; }
  std::uint32_t announce() {
    announced_ = consumed_;
    return static_cast<std::uint32_t>(announced_);
  }

 private:
  std::uint32_t step_;
  std::uint64_t expected_;
  std::uint64_t consumed_;
  std::uint64_t announced_;
};

}  // namespace ferrule
