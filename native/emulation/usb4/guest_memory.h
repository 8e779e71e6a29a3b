// The memory of a guest as its emulated device may reach it. Nothing outside of what was mapped can be touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferrule::usb4 {

class GuestMemory {
 public:
  GuestMemory() = default;
  GuestMemory(const GuestMemory&) = delete;
  GuestMemory& operator=(const GuestMemory&) = delete;
  ~GuestMemory() { clear(); }

  // Map `size` bytes of the file from `offset` at the guest's `address`. Throws std::invalid_argument if that is no
  // range of whole pages, is beyond the file's end, or overlaps what is there; std::system_error if it cannot be
  // mapped.
  void map(std::uint64_t address, std::uint64_t size, int fd, std::uint64_t offset, bool writable);
  // Take away what lies wholly in this range; whether there was any.
  bool unmap(std::uint64_t address, std::uint64_t size);
  void clear();

  // `size` bytes at `address`, or nullptr if they are not wholly in one mapped range that may be used so.
  const std::byte* readable(std::uint64_t address, std::size_t size) const { return find(address, size, false); }
  std::byte* writable(std::uint64_t address, std::size_t size) const { return find(address, size, true); }

 private:
  struct Region {
    std::uint64_t address;
    std::uint64_t size;
    std::byte* data;
    bool writable;
  };

  std::byte* find(std::uint64_t address, std::size_t size, bool to_write) const;

  std::vector<Region> regions_;
};

}  // namespace ferrule::usb4
