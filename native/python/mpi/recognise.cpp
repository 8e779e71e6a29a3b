// MLX has reductions of its own for 16-bit floats, types that MPI does not know. They are told by what they do.
#include <algorithm>
#include <array>

#include "python/mpi/mpi.h"
#include "reduce/reduce.h"

namespace ferrule::mpi {
namespace {

constexpr std::size_t kSamples = 12;
// Room for what a function of wider numbers, up to 16 bytes, reads and writes.
using Samples = std::array<std::uint16_t, 8 * kSamples>;

// Bits of ordinary numbers in both formats, of both signs; some sums must be rounded.
constexpr std::array<std::uint16_t, kSamples> kBits = {0x3c00, 0x4000, 0x4200, 0xbc00, 0x3555, 0x3f80,
                                                       0x4049, 0xc120, 0x4100, 0x3e35, 0xb801, 0x4247};
// NaNs of f16; for bf16 large numbers.
constexpr std::array<std::uint16_t, 2> kNotNumbers = {0x7e00, 0xfe00};

struct Pairs {
  Samples in{};
  Samples inout{};
};

Pairs ordinary() {
  Pairs pairs;
  for (std::size_t i = 0; i < kSamples; ++i) {
    pairs.in[i] = kBits[i];
    pairs.inout[i] = kBits[(7 * i + 5) % kSamples];
  }
  return pairs;
}

Pairs special() {
  Pairs pairs = ordinary();
  pairs.in[0] = pairs.inout[1] = kNotNumbers[0];
  pairs.in[2] = pairs.inout[3] = kNotNumbers[1];
  return pairs;
}

Samples by_function(UserFunction* function, Pairs pairs) {
  Datatype type{Dtype::u8, 2, true};
  Datatype* handle = &type;
  int count = kSamples;
  function(pairs.in.data(), pairs.inout.data(), &count, &handle);
  return pairs.inout;
}

Samples by_fabric(const Reducer& reducer, Pairs pairs) {
  const void* const sources[] = {pairs.inout.data(), pairs.in.data()};
  find_reduction(*reducer.dtype, reducer.reduction)(pairs.inout.data(), sources, 2, kSamples, 2);
  return pairs.inout;
}

}  // namespace

std::optional<Reducer> recognise(UserFunction* function) {
  const auto agrees = [&](const Reducer& one, const Pairs& pairs) {
    return by_function(function, pairs) == by_fabric(one, pairs);
  };
  for (const Reduction reduction : {Reduction::sum, Reduction::max, Reduction::min}) {
    const Reducer bf16{reduction, Dtype::bf16};
    const Reducer f16{reduction, Dtype::f16};
    // The order of ordinary numbers is the same in both formats, so that bf16 has to be right for the others, too.
    if (agrees(bf16, ordinary()) && agrees(bf16, special())) return bf16;
    if (agrees(f16, ordinary())) return f16;
  }
  return std::nullopt;
}

}  // namespace ferrule::mpi
