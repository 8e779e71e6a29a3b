#include "liveness/heartbeat_message.h"

#include <algorithm>
#include <cstring>

namespace ferrule {
namespace {

// Little-endian on the wire, like every machine that Ferrule runs on.
struct Header {
  std::uint32_t magic = 0;
  HeartbeatKind kind{};
  std::uint8_t status = 0;
  std::uint16_t text_bytes = 0;
  std::int32_t rank = -1;
  std::uint32_t unused = 0;
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;
};
static_assert(sizeof(Header) == 32);

constexpr std::uint32_t kMagic = 0x50425246;  // "FRBP"

Header header_of(const std::byte* frame) {
  Header header;
  std::memcpy(&header, frame, sizeof header);
  return header;
}

}  // namespace

void append(std::vector<std::byte>& to, const HeartbeatMessage& message) {
  Header header;
  header.magic = kMagic;
  header.kind = message.kind;
  header.status = static_cast<std::uint8_t>(message.status);
  header.text_bytes = static_cast<std::uint16_t>(std::min(message.text.size(), kHeartbeatTextBytes));
  header.rank = message.rank;
  header.epoch = message.epoch;
  header.sequence = message.sequence;
  const auto* const head = reinterpret_cast<const std::byte*>(&header);
  const auto* const text = reinterpret_cast<const std::byte*>(message.text.data());
  to.insert(to.end(), head, head + sizeof header);
  to.insert(to.end(), text, text + header.text_bytes);
}

bool HeartbeatReader::check_header() {
  const Header header = header_of(frame_.data());
  want_ = kHeader + header.text_bytes;
  const bool known = header.kind >= HeartbeatKind::beat && header.kind <= HeartbeatKind::verdict;
  const bool fine = header.status == static_cast<std::uint8_t>(Status::ok);
  const bool cause = !fine && header.status <= static_cast<std::uint8_t>(Status::system);
  return header.magic == kMagic && known && cause == (header.kind == HeartbeatKind::verdict) && (cause || fine) &&
         header.unused == 0 && header.text_bytes <= kHeartbeatTextBytes;
}

bool HeartbeatReader::read(std::span<const std::byte>& bytes, HeartbeatMessage& into) {
  while (!bytes.empty() && !broken_) {
    const std::size_t n = std::min(bytes.size(), want_ - got_);
    std::copy_n(bytes.begin(), n, frame_.begin() + static_cast<std::ptrdiff_t>(got_));
    bytes = bytes.subspan(n);
    got_ += n;
    if (got_ == kHeader && want_ == kHeader && !check_header()) {
      broken_ = true;
      return false;
    }
    if (got_ != want_) continue;
    const Header header = header_of(frame_.data());
    into.kind = header.kind;
    into.status = static_cast<Status>(header.status);
    into.rank = header.rank;
    into.epoch = header.epoch;
    into.sequence = header.sequence;
    into.text.assign(reinterpret_cast<const char*>(frame_.data()) + kHeader, header.text_bytes);
    got_ = 0;
    want_ = kHeader;
    return true;
  }
  return false;
}

}  // namespace ferrule
