// Packets of an emulated cable, and their length on the wire. Pure.
//
// A packet is what a packet socket with PACKET_VNET_HDR gives and takes: a virtio_net_hdr and an Ethernet frame. With
// segmentation offload one such frame stands for many on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace ferrule::shaper {

using Time = std::int64_t;  // nanoseconds on the monotonic clock

inline constexpr Time kNever = INT64_MAX;
inline constexpr std::size_t kHeaderBytes = 10;  // struct virtio_net_hdr
inline constexpr std::size_t kEthernetBytes = 14;

// Size on the wire: the number of frames, and of the bytes that those have together.
struct Extent {
  std::uint32_t frames = 1;
  std::uint32_t bytes = 0;
};

Extent extent_of(std::span<const std::byte> packet);
// Whether its checksum is yet to be computed: then the receiver could not notice that it was altered.
bool lacks_checksum(std::span<const std::byte> packet);

class Packet {
 public:
  Packet() = default;
  // Takes a copy.
  explicit Packet(std::span<const std::byte> bytes);
  // Takes `memory` over, of which `size` bytes are used.
  Packet(std::unique_ptr<std::byte[]> memory, std::size_t size);

  Packet copy() const { return Packet(bytes()); }
  std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }
  std::span<std::byte> bytes() { return {memory_.get(), size_}; }
  const Extent& extent() const { return extent_; }

  Time arrived = 0;

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
  Extent extent_;
};

}  // namespace ferrule::shaper
