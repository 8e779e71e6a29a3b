#include "transports/tcp/rail_frame.h"

#include <algorithm>
#include <cstring>

#include "assertions.h"

namespace ferrule {

bool valid(const FrameHeader& header, const FrameBounds& bounds) {
  if (header.magic != kFrameMagic || header.reserved != 0 || (header.flags & ~kAckNow) != 0) return false;
  if (header.received > bounds.sent || header.held > header.received || header.held > kRailWindowBytes) return false;
  switch (header.kind) {
    case FrameKind::data:
      return header.length != 0 && header.length <= kMaxPayloadBytes && header.offset <= bounds.window_end &&
             header.length <= bounds.window_end - header.offset;
    case FrameKind::ack:
      return header.length == 0;
    case FrameKind::close_notice:
      return header.length == bounds.close_notice_bytes && header.offset <= bounds.window_end;
  }
  return false;
}

FrameReader::Step FrameReader::step(std::span<const std::byte>& input, const FrameBounds& bounds,
                                    std::span<const std::byte>& payload) {
  if (input.empty()) return Step::more;
  if (left_ != 0) {
    payload = input.first(std::min(left_, input.size()));
    input = input.subspan(payload.size());
    left_ -= payload.size();
    return Step::payload;
  }
  const std::size_t n = std::min(input.size(), raw_.size() - have_);
  std::memcpy(raw_.data() + have_, input.data(), n);
  input = input.subspan(n);
  have_ += n;
  if (have_ < raw_.size()) return Step::more;
  have_ = 0;
  std::memcpy(&header_, raw_.data(), sizeof header_);
  if (!valid(header_, bounds)) return Step::broken;
  left_ = header_.length;
  return Step::header;
}

void FrameReader::skip(std::size_t bytes) {
  FERRULE_ASSERT(bytes <= left_);
  left_ -= bytes;
}

}  // namespace ferrule
