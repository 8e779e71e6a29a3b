// Wire format of a rail: frames, each a header of fixed size and a payload.
//
// The bytes of the stream carry their offset, so frames may take any rail and come in any order, and one that comes
// twice is recognised. Every header tells how far its sender has received the stream of the other direction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ferrule {

enum class FrameKind : std::uint8_t {
  data = 1,
  ack = 2,           // only a header
  close_notice = 3,  // not part of the stream, which ends at `offset`
};

constexpr std::uint8_t kAckNow = 1;  // the sender waits for the acknowledgement of this frame
constexpr std::uint16_t kFrameMagic = 0x4652;
constexpr std::uint32_t kMaxPayloadBytes = 512 << 10;
// Bytes that a sender may be ahead of what the receiver's user has taken. So the receiver can always read its rails to
// their end, wherever it has to keep the bytes, and no acknowledgement is ever stuck behind data.
constexpr std::uint64_t kRailWindowBytes = 8 << 20;

// Little-endian on the wire, like every machine that Ferrule runs on.
struct FrameHeader {
  std::uint16_t magic = kFrameMagic;
  FrameKind kind = FrameKind::data;
  std::uint8_t flags = 0;
  std::uint32_t length = 0;    // of the payload
  std::uint64_t offset = 0;    // of the payload in the stream
  std::uint64_t received = 0;  // all bytes of the other direction before this offset are here
  std::uint32_t held = 0;      // how many of those the receiver's user has not taken yet
  std::uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 32);

// Bounds of a frame that its receiver knows.
struct FrameBounds {
  std::uint64_t window_end = 0;          // no byte of the stream may be beyond
  std::uint64_t sent = 0;                // what was never sent cannot have been received
  std::uint32_t close_notice_bytes = 0;  // of the payload of a close notice
};

bool valid(const FrameHeader& header, const FrameBounds& bounds);

// Cuts the bytes of one rail into frames.
class FrameReader {
 public:
  enum class Step {
    more,     // `input` is used up
    header,   // header() is new; left() bytes of payload follow
    payload,  // the next bytes of the payload, which were at position() before this step
    broken,   // not a frame that the peer may send: nothing behind it means anything
  };

  // Takes bytes from the front of `input`.
  Step step(std::span<const std::byte>& input, const FrameBounds& bounds, std::span<const std::byte>& payload);
  // `bytes` of payload were read past this reader, straight to their place.
  void skip(std::size_t bytes);

  const FrameHeader& header() const { return header_; }
  std::size_t left() const { return left_; }
  std::uint64_t position() const { return header_.offset + header_.length - left_; }

 private:
  std::array<std::byte, sizeof(FrameHeader)> raw_{};
  std::size_t have_ = 0;
  FrameHeader header_;
  std::size_t left_ = 0;
};

}  // namespace ferrule
