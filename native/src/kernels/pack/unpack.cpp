#include "kernels/pack/unpack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "assertions.h"

namespace ferrule {
namespace {

constexpr std::size_t kWord = 4;
constexpr std::size_t kRowsAtOnce = 16;  // of words that lie apart: as many as are in a line of the cache

// kWidth: where it is not 0, the width, so that loops have a known length.
template <std::size_t kWidth>
void lanes(const CodedRows given, std::uint8_t* __restrict out) {
  const std::size_t width = kWidth == 0 ? given.width : kWidth;
  const auto bits = static_cast<unsigned>(given.bits);
  const auto mask = static_cast<std::uint8_t>((1U << bits) - 1);
  for (std::size_t row = 0; row < given.rows; ++row) {
    const std::uint8_t* const __restrict from = given.at + row * given.stride;
    for (std::size_t at = 0; at < given.bytes; at += width) {
      for (unsigned shift = 0; shift < 8; shift += bits) {
        for (std::size_t i = 0; i < width; ++i) out[i] = from[at + i] >> shift & mask;
        out += width;
      }
    }
  }
}

// Two codes in a byte, end to end.
void halves(const CodedRows given, std::uint8_t* __restrict out) {
  for (std::size_t row = 0; row < given.rows; ++row) {
    const std::uint8_t* const __restrict from = given.at + row * given.stride;
    for (std::size_t i = 0; i < given.bytes; ++i) {
      out[2 * i] = from[i] & 15;
      out[2 * i + 1] = from[i] >> 4;
    }
    out += 2 * given.bytes;
  }
}

// Eight codes take `bits` bytes.
void across(const CodedRows given, std::uint8_t* __restrict out) {
  const std::uint64_t mask = (1U << given.bits) - 1;
  for (std::size_t row = 0; row < given.rows; ++row) {
    const std::uint8_t* const from = given.at + row * given.stride;
    for (std::size_t code = 0; code < given.codes(); code += 8) {
      std::uint64_t eight = 0;
      const std::size_t first = code * given.bits / 8;
      const std::size_t last = std::min(first + given.bits, given.bytes);
      for (std::size_t i = first; i < last; ++i) eight |= std::uint64_t{from[i]} << 8 * (i - first);
      const std::size_t some = std::min<std::size_t>(8, given.codes() - code);
      for (std::size_t i = 0; i < some; ++i) *out++ = static_cast<std::uint8_t>(eight >> i * given.bits & mask);
    }
  }
}

void end_to_end(const CodedRows& given, std::uint8_t* out) {
  if (8 % given.bits != 0) return across(given, out);
  if (given.width == 1 && given.bits == 4) return halves(given, out);
  switch (given.width) {
    case 16:
      return lanes<16>(given, out);
    case 32:
      return lanes<32>(given, out);
    case 64:
      return lanes<64>(given, out);
    default:
      return lanes<0>(given, out);
  }
}

}  // namespace

void unpack(const CodedRows& given, std::uint8_t* out) {
  FERRULE_ASSERT(given.bits >= 1 && given.bits <= 8 && given.width != 0 && given.bytes % given.width == 0);
  FERRULE_ASSERT(8 % given.bits == 0 || given.width == 1);
  if (given.step == 0) return end_to_end(given, out);
  std::vector<std::uint8_t> some(kRowsAtOnce * given.bytes);
  for (std::size_t first = 0; first < given.rows; first += kRowsAtOnce) {
    const std::size_t rows = std::min(kRowsAtOnce, given.rows - first);
    for (std::size_t at = 0; at < given.bytes; at += kWord) {
      const std::uint8_t* const from = given.at + first * given.stride + at / kWord * given.step;
      for (std::size_t row = 0; row < rows; ++row) {
        std::memcpy(some.data() + row * given.bytes + at, from + row * given.stride, kWord);
      }
    }
    end_to_end({some.data(), rows, given.bytes, given.bytes, given.width, given.bits}, out + first * given.codes());
  }
}

}  // namespace ferrule
