// libFuzzer: whatever bytes a rank's heartbeat receives, and in whatever pieces, its reader gives frames that are
// valid, the same ones for any pieces, or refuses the stream for good. Build and run it like fuzz_group.
#include <cstdlib>
#include <vector>

#include "fuzz_input.h"
#include "pulse.h"

namespace {

using namespace ferrule;

void require(bool condition) {
  if (!condition) std::abort();
}

// Frames as a peer would send them, some with a changed byte, and raw bytes.
std::vector<std::byte> stream_from(Input& input) {
  std::vector<std::byte> stream;
  for (int parts = 1 + input.byte() % 4; parts > 0; --parts) {
    const std::uint8_t shape = input.byte();
    if (shape % 4 == 0) {
      for (const std::uint8_t raw : input.some(input.byte())) stream.push_back(std::byte{raw});
      continue;
    }
    Pulse pulse;
    pulse.kind = static_cast<PulseKind>(1 + shape / 4 % 5);
    if (pulse.kind == PulseKind::verdict) pulse.status = static_cast<ferrule_status>(1 + input.byte() % FERRULE_SYSTEM);
    pulse.rank = input.take<std::int32_t>();
    pulse.epoch = input.take<std::uint64_t>();
    pulse.sequence = input.take<std::uint64_t>();
    pulse.text.assign(input.byte() + input.byte() % 2u, 'x');  // one more than fits, at most
    const std::size_t begin = stream.size();
    append(stream, pulse);
    require(stream.size() - begin <= 32 + kPulseText);
    if (shape % 4 == 1) stream[begin + input.byte() % (stream.size() - begin)] ^= std::byte{input.byte()};
  }
  return stream;
}

// All frames that a reader finds when it gets the stream in pieces of these sizes; whether it found it broken.
template <class NextSize>
bool read_all(std::span<const std::byte> stream, NextSize&& next_size, std::vector<Pulse>& frames) {
  PulseReader reader;
  while (!stream.empty()) {
    std::span<const std::byte> piece = stream.first(std::min(stream.size(), next_size()));
    stream = stream.subspan(piece.size());
    Pulse pulse;
    while (reader.read(piece, pulse)) {
      require(pulse.kind >= PulseKind::beat && pulse.kind <= PulseKind::verdict);
      require((pulse.status != FERRULE_OK) == (pulse.kind == PulseKind::verdict));
      require(pulse.text.size() <= kPulseText);
      frames.push_back(pulse);
    }
    require(piece.empty() || reader.broken());
    if (reader.broken()) {
      std::span<const std::byte> more = stream;
      require(!reader.read(more, pulse));
      return true;
    }
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::vector<std::byte> stream = stream_from(input);
  std::vector<Pulse> whole;
  std::vector<Pulse> pieces;
  const bool broken = read_all(stream, [&] { return stream.size(); }, whole);
  require(read_all(stream, [&] { return std::size_t{1} + input.byte() % 50; }, pieces) == broken);
  require(whole == pieces);
  return 0;
}
