// libFuzzer: whatever frames a peer sends over a queue pair, the pipe gives bytes or refuses them: no crash, no read or
// write outside of its memory, no send without room. Build and run it like fuzz_group.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "fuzz/fuzz_input.h"
#include "transports/fake_queue_pair.h"

namespace {

using namespace ferrule;

constexpr std::size_t kDepth = 12;
constexpr PipeShape kShape{4, 64};
constexpr std::uint32_t kToken = 7;

// A frame of the right connection, mostly, and of any size that the hardware would deliver.
void post_frame(Input& input, FakeWire& wire) {
  VerbsFrameHeader header;
  header.token = input.byte() % 16 == 0 ? input.byte() : kToken;
  header.sequence = input.byte() - 4u;
  header.consumed = input.byte() - 4u;
  header.kind = static_cast<VerbsFrameKind>(input.byte() % 8);
  std::vector<std::byte> frame(input.byte() % 8 == 0 ? input.byte() % (kShape.slot_bytes + 1)
                                                     : sizeof header + input.byte() % (kShape.slot_bytes - 15));
  header.bytes = static_cast<std::uint16_t>(frame.size() - sizeof header);
  const auto* const bytes = reinterpret_cast<const std::byte*>(&header);
  std::copy_n(bytes, std::min(frame.size(), sizeof header), frame.begin());
  wire.under_way.push_back({std::move(frame), false});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  FakeWire out;
  FakeWire in;
  const bool reliable = input.byte() % 2 == 0;
  auto made =
      std::make_unique<FakeQueuePair>(out, in, kShape.memory_bytes(kDepth), kShape.slot_bytes, kDepth, reliable);
  VerbsPipe pipe(std::move(made), {kShape, kToken});
  pipe.meet({kShape, kToken + 1});
  std::byte bytes[100] = {};
  try {
    while (!input.empty()) {
      switch (input.byte() % 5) {
        case 0:
          if (!in.receives.empty()) post_frame(input, in);
          FakeQueuePair::deliver(in, false, false);
          break;
        case 1: {
          const ConstBytes parts[] = {ConstBytes(bytes).first(input.byte() % sizeof bytes)};
          (void)pipe.write(parts);
          break;
        }
        case 2:
          (void)pipe.read(Bytes(bytes).first(input.byte() % sizeof bytes));
          break;
        case 3:
          FakeQueuePair::deliver(out, true, false);
          break;
        default:
          (void)pipe.prepare_sleep(true);
          pipe.take_events();
      }
    }
  } catch (const FrameError&) {
    // That is how wrong frames end.
  }
  return 0;
}
