// Memory of a device that the processor may not touch, registered with an adapter that reads and writes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrule {

// A dma-buf's bytes [offset, offset + length), which the device has at `address`. The descriptor stays the caller's,
// who may close it after the registration.
struct DeviceMemory {
  int fd = -1;
  std::uint64_t offset = 0;
  std::size_t length = 0;
  std::uint64_t address = 0;
};

// Registered memory. It ends the registration when it dies, which must be after all operations that use it.
struct DeviceRegion {
  DeviceRegion(std::uint64_t address_, std::size_t length_, std::uint32_t local, std::uint32_t remote)
      : address(address_), length(length_), local_key(local), remote_key(remote) {}
  virtual ~DeviceRegion() = default;
  DeviceRegion(const DeviceRegion&) = delete;
  DeviceRegion& operator=(const DeviceRegion&) = delete;

  bool holds(std::uint64_t begin, std::size_t bytes) const {
    return begin >= address && bytes <= length && begin - address <= length - bytes;
  }

  const std::uint64_t address;
  const std::size_t length;
  const std::uint32_t local_key;
  const std::uint32_t remote_key;
};

// Bytes of a region.
struct DeviceBytes {
  const DeviceRegion* region = nullptr;
  std::uint64_t address = 0;
  std::size_t size = 0;

  DeviceBytes from(std::size_t offset) const { return {region, address + offset, size - offset}; }
  DeviceBytes first(std::size_t bytes) const { return {region, address, bytes}; }
};

// The place that a receiver offers for message `sequence`, so that its sender may write the payload there. On the wire.
struct Grant {
  std::uint64_t sequence = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t key = 0;
  std::uint32_t unused = 0;
};
static_assert(sizeof(Grant) == 32);

}  // namespace ferrule
