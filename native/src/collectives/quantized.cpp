// All-reduce with 8-bit blocks on the wire: a quarter of the bytes of f32, for links that are slow against the CPU.
//
// Two ranks exchange everything; more reduce one piece each (with their own part as it is) and send that around as
// blocks again. What every rank ends with is always made from the same bytes, its own included, so it is equal.
#include <algorithm>
#include <cstring>

#include "collectives/net.h"
#include "reduce/quantize.h"

namespace ferrule {

void NetCollectives::all_reduce_quantized(const Call& call, std::byte* data) {
  const auto dtype = static_cast<Dtype>(call.dtype);
  const std::size_t element = size_of(dtype);
  const std::size_t elements = static_cast<std::size_t>(call.bytes) / element;
  const auto n = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  const float divisor = call.averages() ? static_cast<float>(size_) : 1.0F;
  // Equal pieces of whole blocks, the last ones shorter or empty.
  const bool pair = size_ == 2;
  const std::size_t piece = pair ? elements : (elements / n / kQuantBlock + 1) * kQuantBlock;
  const auto begin = [&](std::size_t rank) { return pair ? 0 : std::min(elements, rank * piece); };
  const auto length = [&](std::size_t rank) {
    return pair ? elements : std::min(elements, (rank + 1) * piece) - begin(rank);
  };

  std::vector<float> wide(elements);
  widen(dtype, data, wide.data(), elements);
  const std::size_t part = quantized_bytes(piece);
  std::vector<std::byte> sent(n * part);
  std::vector<std::byte> received(n * part);
  Call phase = call;
  exchange_.clear();
  for (std::size_t peer = 0; peer < n; ++peer) {
    if (!pair || peer != me) quantize(wide.data() + begin(peer), sent.data() + peer * part, length(peer));
    if (channels_[peer] == nullptr) continue;
    exchange_.to(channels_[peer], header(phase)).first = {sent.data() + peer * part, quantized_bytes(length(peer))};
    exchange_.from(channels_[peer], header(phase)).second = {received.data() + peer * part,
                                                             quantized_bytes(length(me))};
  }
  exchange_.run();

  float* const mine = wide.data() + begin(me);
  const std::size_t count = length(me);
  if (pair) {
    const std::byte* const ours = sent.data() + (1 - me) * part;
    const std::byte* const theirs = received.data() + (1 - me) * part;
    dequantize(me == 0 ? ours : theirs, mine, count, false);
    dequantize(me == 0 ? theirs : ours, mine, count, true);
    for (float& value : wide) value /= divisor;
    narrow(dtype, wide.data(), data, elements);
    return;
  }
  for (std::size_t peer = 0; peer < n; ++peer) {
    if (peer != me) dequantize(received.data() + peer * part, mine, count, true);
  }
  for (std::size_t i = 0; i < count; ++i) mine[i] /= divisor;
  quantize(mine, received.data() + me * part, count);
  phase.op = Op::all_gather;
  phase.variant = 2;
  phase.bytes = part;
  phase.dtype = static_cast<std::uint8_t>(Dtype::u8);
  phase.reduction = 0;
  all_gather(phase, received.data() + me * part, received.data());
  for (std::size_t peer = 0; peer < n; ++peer) {
    dequantize(received.data() + peer * part, wide.data() + begin(peer), length(peer), false);
  }
  narrow(dtype, wide.data(), data, elements);
}

}  // namespace ferrule
