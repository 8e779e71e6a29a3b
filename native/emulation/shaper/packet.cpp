#include "emulation/shaper/packet.h"

#include <algorithm>
#include <cstring>

namespace ferrule::shaper {
namespace {

// struct virtio_net_hdr, in the machine's byte order (virtio 1.2, section 5.1.6; linux/virtio_net.h).
struct Offload {
  std::uint8_t flags;
  std::uint8_t kind;
  std::uint16_t header_size;
  std::uint16_t segment_size;
  std::uint16_t checksum_start;
  std::uint16_t checksum_offset;
};
static_assert(sizeof(Offload) == kHeaderBytes);

constexpr std::uint8_t kNeedsChecksum = 1;
constexpr std::uint8_t kTcp4 = 1;
constexpr std::uint8_t kTcp6 = 4;
constexpr std::uint8_t kCongested = 0x80;  // a flag among the kinds: ECN
constexpr std::size_t kUdpHeader = 8;
constexpr std::size_t kTcpDataOffset = 12;  // of the byte that holds the header's length, in words, in its upper half

Offload offload_of(std::span<const std::byte> packet) {
  Offload found{};
  if (packet.size() >= sizeof found) std::memcpy(&found, packet.data(), sizeof found);
  return found;
}

}  // namespace

Extent extent_of(std::span<const std::byte> packet) {
  const Offload offload = offload_of(packet);
  const auto frame = packet.subspan(std::min(packet.size(), kHeaderBytes));
  const Extent whole{1, static_cast<std::uint32_t>(frame.size())};
  if (offload.kind == 0 || offload.segment_size == 0) return whole;
  // The kernel's header_size is no more than a hint; the transport header begins where its checksum does.
  std::size_t headers = offload.checksum_start;
  const std::uint8_t kind = offload.kind & static_cast<std::uint8_t>(~kCongested);
  if (kind == kTcp4 || kind == kTcp6) {
    if (headers + kTcpDataOffset >= frame.size()) return whole;
    headers += static_cast<std::size_t>(frame[headers + kTcpDataOffset] >> 4) * 4;
  } else {
    headers += kUdpHeader;
  }
  if (headers >= frame.size()) return whole;
  const std::size_t payload = frame.size() - headers;
  const std::size_t frames = (payload + offload.segment_size - 1) / offload.segment_size;
  return {static_cast<std::uint32_t>(frames), static_cast<std::uint32_t>(payload + frames * headers)};
}

bool lacks_checksum(std::span<const std::byte> packet) { return (offload_of(packet).flags & kNeedsChecksum) != 0; }

Packet::Packet(std::span<const std::byte> bytes)
    : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes.size())),
      size_(bytes.size()),
      extent_(extent_of(bytes)) {
  std::ranges::copy(bytes, memory_.get());
}

Packet::Packet(std::unique_ptr<std::byte[]> memory, std::size_t size)
    : memory_(std::move(memory)), size_(size), extent_(extent_of({memory_.get(), size})) {}

}  // namespace ferrule::shaper
