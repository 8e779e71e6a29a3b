// Memory for weights and caches: whole pages, large ones where the system has them, so that reading it costs few
// look-ups of addresses.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace ferrule {

class PageMemory {
 public:
  PageMemory() = default;
  // Zeros. Throws std::bad_alloc.
  explicit PageMemory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::uint8_t*>(at);
#ifdef MADV_HUGEPAGE
    constexpr std::size_t kLarge = std::size_t{2} << 20;
    if (bytes >= kLarge) ::madvise(at, bytes, MADV_HUGEPAGE);
#endif
  }
  PageMemory(PageMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PageMemory& operator=(PageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PageMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ferrule
