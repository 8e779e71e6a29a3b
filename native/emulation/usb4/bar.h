// The registers of a controller, in memory that the emulator may map into its guest: then a doorbell costs the guest a
// store, and this side finds it by looking. Every value read from here may change at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "emulation/usb4/registers.h"

namespace ferrule::usb4 {

class Bar {
 public:
  Bar();
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;
  ~Bar();

  int fd() const { return fd_; }
  std::byte* data() const { return data_; }

  // `offset` is a multiple of the size and below kBarSize.
  std::uint32_t get32(std::uint32_t offset) const {
    return atomic<std::uint32_t>(offset).load(std::memory_order_acquire);
  }
  std::uint16_t get16(std::uint32_t offset) const {
    return atomic<std::uint16_t>(offset).load(std::memory_order_acquire);
  }
  std::uint64_t get64(std::uint32_t offset) const { return get32(offset) | std::uint64_t{get32(offset + 4)} << 32; }
  void set32(std::uint32_t offset, std::uint32_t value) {
    atomic<std::uint32_t>(offset).store(value, std::memory_order_release);
  }
  void set16(std::uint32_t offset, std::uint16_t value) {
    atomic<std::uint16_t>(offset).store(value, std::memory_order_release);
  }
  void or32(std::uint32_t offset, std::uint32_t bits) { atomic<std::uint32_t>(offset).fetch_or(bits); }
  void clear32(std::uint32_t offset, std::uint32_t bits) { atomic<std::uint32_t>(offset).fetch_and(~bits); }
  std::uint32_t take32(std::uint32_t offset) { return atomic<std::uint32_t>(offset).exchange(0); }

 private:
  template <class Value>
  std::atomic_ref<Value> atomic(std::uint32_t offset) const {
    return std::atomic_ref<Value>(*reinterpret_cast<Value*>(data_ + offset));
  }

  int fd_ = -1;
  std::byte* data_ = nullptr;
};

}  // namespace ferrule::usb4
