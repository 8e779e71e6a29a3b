// Memory for weights and caches: whole pages, large ones where the system has them, so that reading it costs few
// look-ups of addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace ferrule {

// Zeros, from a large page's border on.
class PageMemory {
 public:
  PageMemory() = default;
  explicit PageMemory(std::size_t bytes);  // Throws std::bad_alloc.
  PageMemory(PageMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PageMemory& operator=(PageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PageMemory();

  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A part of some pages that others share. Matrices lie side by side, since many are smaller than a large page. The
// pages go when all parts of them have gone; what is behind the last part was never touched, and takes no memory.
class SharedMemory {
 public:
  SharedMemory() = default;
  explicit SharedMemory(std::size_t bytes);  // Zeros. Throws std::bad_alloc.

  std::uint8_t* data() const { return data_; }

 private:
  std::shared_ptr<PageMemory> pages_;
  std::uint8_t* data_ = nullptr;
};

}  // namespace ferrule
