#include "transports/tcp/rail_outbound.h"

#include <algorithm>
#include <cstring>

#include "assertions.h"

namespace ferrule {
namespace {

constexpr std::size_t kRingBytes = 1 << 20;

}  // namespace

std::size_t Outbound::copy_room() const {
  // A frame lies in the ring in one piece: before its end or, when that is left empty, at its beginning.
  const std::size_t free = kRingBytes - ring_used_;
  const std::size_t to_end = std::min(kRingBytes - ring_head_, free);
  const std::size_t longest = std::max(to_end, free - to_end);
  return std::min<std::size_t>(longest - std::min(longest, sizeof(FrameHeader)), kMaxPayloadBytes);
}

OutFrame& Outbound::copy(std::span<const ConstBytes> parts, std::size_t size) {
  if (!ring_) ring_ = std::make_unique_for_overwrite<std::byte[]>(kRingBytes);
  if (ring_used_ == 0) ring_head_ = 0;  // the same few cache lines as long as the peer keeps up
  std::size_t unused = 0;
  const std::size_t whole = sizeof(FrameHeader) + size;
  if (ring_head_ + whole > kRingBytes) {
    unused = kRingBytes - ring_head_;
    ring_head_ = 0;
  }
  FERRULE_ASSERT(size != 0 && ring_used_ + unused + whole <= kRingBytes);
  std::byte* const data = ring_.get() + ring_head_ + sizeof(FrameHeader);
  std::size_t done = 0;
  for (const ConstBytes& part : parts) {
    const std::size_t n = std::min(part.size(), size - done);
    if (n != 0) std::memcpy(data + done, part.data(), n);
    done += n;
  }
  ring_head_ += whole;
  ring_used_ += unused + whole;
  OutFrame frame;
  frame.data = data;
  frame.size = static_cast<std::uint32_t>(size);
  frame.ring = static_cast<std::uint32_t>(unused + whole);
  return append(frame);
}

OutFrame& Outbound::refer(ConstBytes bytes) {
  OutFrame frame;
  frame.data = bytes.data();
  frame.size = static_cast<std::uint32_t>(bytes.size());
  FERRULE_ASSERT(!bytes.empty() && bytes.size() <= kMaxPayloadBytes);
  ++referred_;
  return append(frame);
}

OutFrame& Outbound::append(OutFrame frame) {
  frame.offset = end_;
  end_ += frame.size;
  return frames_.emplace_back(frame);
}

std::uint64_t Outbound::first_referred() const {
  if (!refers()) return end_;
  return std::ranges::find_if(frames_, [](const OutFrame& frame) { return !frame.copied(); })->offset;
}

void Outbound::acknowledge(std::uint64_t offset) {
  if (offset <= acknowledged_) return;
  FERRULE_ASSERT(offset <= end_);
  acknowledged_ = offset;
  while (!lost_.empty() && lost_.front()->end() <= offset) lost_.pop_front();
  while (!frames_.empty() && frames_.front().end() <= offset) {
    FERRULE_ASSERT(ring_used_ >= frames_.front().ring);
    ring_used_ -= frames_.front().ring;
    if (!frames_.front().copied()) --referred_;
    frames_.pop_front();
  }
  FERRULE_ASSERT(frames_.empty() ? acknowledged_ == end_ && ring_used_ == 0 && referred_ == 0
                                 : frames_.front().offset <= acknowledged_);
  FERRULE_ASSERT_COSTLY(std::ranges::is_sorted(frames_, {}, &OutFrame::offset));
}

void Outbound::give_up(int rail) {
  lost_.clear();
  for (OutFrame& frame : frames_) {
    if (frame.rail == rail) frame.rail = kNoRail;
    if (frame.rail == kNoRail) lost_.push_back(&frame);
  }
}

}  // namespace ferrule
