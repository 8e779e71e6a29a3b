// The bytes that a fuzzer gives, taken from the front; zeros when there are no more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() { return take<std::uint8_t>(); }
  template <class Value>
  Value take() {
    Value value{};
    const auto front = some(sizeof value);
    if (!front.empty()) std::memcpy(&value, front.data(), front.size());
    return value;
  }
  std::span<const std::uint8_t> some(std::size_t size) {
    const auto front = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(front.size());
    return front;
  }

 private:
  std::span<const std::uint8_t> rest_;
};
