#include "emulation/usb4/guest_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace ferrule::usb4 {

namespace {

constexpr std::size_t kMostRegions = 4096;

}  // namespace

void GuestMemory::map(std::uint64_t address, std::uint64_t size, int fd, std::uint64_t offset, bool writable) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (size == 0 || size % page != 0 || offset % page != 0) throw std::invalid_argument("not a range of whole pages");
  if (address + size - 1 < address || offset + size < offset) throw std::invalid_argument("the range wraps around");
  struct stat file {};
  if (::fstat(fd, &file) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
  // Beyond the end of a file there is nothing, and a process that touches it is killed.
  if (!S_ISREG(file.st_mode) || offset + size > static_cast<std::uint64_t>(file.st_size)) {
    throw std::invalid_argument("the range is beyond the file's end");
  }
  const bool overlaps = std::any_of(regions_.begin(), regions_.end(), [&](const Region& region) {
    return address <= region.address + region.size - 1 && region.address <= address + size - 1;
  });
  if (overlaps) throw std::invalid_argument("the range overlaps another one");
  if (regions_.size() >= kMostRegions) throw std::invalid_argument("too many ranges");
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  void* const data = ::mmap(nullptr, size, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  regions_.push_back({address, size, static_cast<std::byte*>(data), writable});
}

bool GuestMemory::unmap(std::uint64_t address, std::uint64_t size) {
  const auto inside = [&](const Region& region) {
    return region.address >= address && region.address - address < size &&
           size - (region.address - address) >= region.size;
  };
  const auto gone =
      std::stable_partition(regions_.begin(), regions_.end(), [&](const auto& each) { return !inside(each); });
  const bool found = gone != regions_.end();
  std::for_each(gone, regions_.end(), [](const Region& region) { ::munmap(region.data, region.size); });
  regions_.erase(gone, regions_.end());
  return found;
}

void GuestMemory::clear() {
  for (const Region& region : regions_) ::munmap(region.data, region.size);
  regions_.clear();
}

std::byte* GuestMemory::find(std::uint64_t address, std::size_t size, bool to_write) const {
  for (const Region& region : regions_) {
    if (address < region.address || address - region.address >= region.size) continue;
    const std::uint64_t place = address - region.address;
    if (region.size - place < size || (to_write && !region.writable)) return nullptr;
    return region.data + place;
  }
  return nullptr;
}

}  // namespace ferrule::usb4
