// Codes of a few bits, as files have them, as bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrule {

// `rows` times `bytes` bytes, each `stride` after the one before. Of each `width` bytes first the lowest `bits` of all,
// then the next; with a width of 1 codes lie end to end. So do those of 3, 5, 6 or 7 bits, which stand across bytes,
// and are of width 1. `bytes` is a multiple of `width`. `step`: where it is not 0, the bytes of a row are words of 4,
// and this is from one to the next.
struct CodedRows {
  const std::uint8_t* at = nullptr;
  std::size_t rows = 0;
  std::size_t stride = 0;
  std::size_t bytes = 0;
  std::size_t width = 1;
  std::size_t bits = 8;  // 1 to 8
  std::size_t step = 0;

  std::size_t codes() const { return bytes * 8 / bits; }  // of a row
};

// A byte for each code, row after row.
void unpack(const CodedRows& given, std::uint8_t* out);

}  // namespace ferrule
