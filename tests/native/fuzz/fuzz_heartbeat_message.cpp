// libFuzzer: whatever bytes a rank's heartbeat receives, and in whatever pieces, its reader gives frames that are
// valid, the same ones for any pieces, or refuses the stream for good. Build and run it like fuzz_group.
#include <cstdlib>
#include <vector>

#include "fuzz/fuzz_input.h"
#include "liveness/heartbeat_message.h"

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
    HeartbeatMessage message;
    message.kind = static_cast<HeartbeatKind>(1 + shape / 4 % 5);
    if (message.kind == HeartbeatKind::verdict)
      message.status = static_cast<Status>(1 + input.byte() % static_cast<int>(Status::system));
    message.rank = input.take<std::int32_t>();
    message.epoch = input.take<std::uint64_t>();
    message.sequence = input.take<std::uint64_t>();
    message.text.assign(input.byte() + input.byte() % 2u, 'x');  // one more than fits, at most
    const std::size_t begin = stream.size();
    append(stream, message);
    require(stream.size() - begin <= 32 + kHeartbeatTextBytes);
    if (shape % 4 == 1) stream[begin + input.byte() % (stream.size() - begin)] ^= std::byte{input.byte()};
  }
  return stream;
}

// All frames that a reader finds when it gets the stream in pieces of these sizes; whether it found it broken.
template <class NextSize>
bool read_all(std::span<const std::byte> stream, NextSize&& next_size, std::vector<HeartbeatMessage>& frames) {
  HeartbeatReader reader;
  while (!stream.empty()) {
    std::span<const std::byte> piece = stream.first(std::min(stream.size(), next_size()));
    stream = stream.subspan(piece.size());
    HeartbeatMessage message;
    while (reader.read(piece, message)) {
      require(message.kind >= HeartbeatKind::beat && message.kind <= HeartbeatKind::verdict);
      require((message.status != Status::ok) == (message.kind == HeartbeatKind::verdict));
      require(message.text.size() <= kHeartbeatTextBytes);
      frames.push_back(message);
    }
    require(piece.empty() || reader.broken());
    if (reader.broken()) {
      std::span<const std::byte> more = stream;
      require(!reader.read(more, message));
      return true;
    }
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::vector<std::byte> stream = stream_from(input);
  std::vector<HeartbeatMessage> whole;
  std::vector<HeartbeatMessage> pieces;
  const bool broken = read_all(
      stream, [&] { return stream.size(); }, whole);
  require(read_all(
              stream, [&] { return std::size_t{1} + input.byte() % 50; }, pieces) == broken);
  require(whole == pieces);
  return 0;
}
