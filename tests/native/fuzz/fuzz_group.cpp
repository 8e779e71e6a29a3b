// libFuzzer: whatever bytes a peer's connections bring, a group ends its operation with a status: no crash, no hang,
// no read or write outside of its arrays.
//
//   CXX=clang++ cmake -S native -B build/fuzz -DFERRULE_PYTHON=OFF -DFERRULE_FUZZ=ON
//   cmake --build build/fuzz && build/fuzz/fuzz_group -max_total_time=20
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ferrule/ferrule.h"
#include "fuzz/fuzz_input.h"
#include "transports/message.h"

namespace {

constexpr std::uint64_t kEpoch = 4711;
constexpr double kTimeout = 1;
constexpr std::size_t kElements = 20;

// A header as a peer would send it for this operation, with some of its bytes changed.
void plausible_header(Input& input, const ferrule_operation& operation, std::vector<std::uint8_t>& into) {
  ferrule::MessageHeader header;
  header.epoch = kEpoch;
  header.call.op = operation.op == FERRULE_RECV ? ferrule::Op::send : static_cast<ferrule::Op>(operation.op);
  header.call.dtype = static_cast<std::uint8_t>(operation.dtype);
  header.call.reduction = static_cast<std::uint8_t>(operation.reduction);
  header.call.sequence = 1;
  header.call.bytes = kElements * ferrule_dtype_size(operation.dtype);
  std::uint8_t bytes[sizeof header];
  std::memcpy(bytes, &header, sizeof header);
  for (int changes = input.byte() % 4; changes > 0; --changes) bytes[input.byte() % sizeof bytes] ^= input.byte();
  into.insert(into.end(), bytes, bytes + sizeof bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  constexpr ferrule_op kOps[] = {FERRULE_ALL_REDUCE, FERRULE_ALL_GATHER, FERRULE_REDUCE_SCATTER, FERRULE_BROADCAST,
                                 FERRULE_REDUCE,     FERRULE_GATHER,     FERRULE_SCATTER,        FERRULE_ALL_TO_ALL,
                                 FERRULE_RECV,       FERRULE_BARRIER};
  const int ranks = 2 + input.byte() % 2;
  std::vector<float> in(kElements * static_cast<std::size_t>(ranks));
  std::vector<float> out(in.size());
  ferrule_operation operation{};
  operation.op = kOps[input.byte() % std::size(kOps)];
  operation.dtype = FERRULE_F32;
  operation.root = 1;
  operation.in = in.data();
  operation.out = out.data();
  operation.count = kElements;
  operation.quantized = operation.op == FERRULE_ALL_REDUCE && input.byte() % 2;
  const auto algorithm = static_cast<ferrule_algorithm>(input.byte() % 5);

  std::vector<ferrule_channel*> streams[2];
  std::vector<int> peers;
  for (auto& stream : streams) {
    stream.push_back(nullptr);
    for (int peer = 1; peer < ranks; ++peer) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) std::abort();
      const ferrule_ends ends{0, peer, pair[0], kEpoch};
      stream.push_back(ferrule_channel_tcp(&ends));
      peers.push_back(pair[1]);
    }
  }
  const int tree[] = {-1, 0, 0};
  const int ring[] = {0, 1, 2};
  const ferrule_decision decision{operation.op, ~std::uint64_t{0}, algorithm};
  ferrule_group_options options{};
  options.abi_version = FERRULE_ABI_VERSION;
  options.size = ranks;
  options.epoch = kEpoch;
  options.collectives = streams[0].data();
  options.messages = streams[1].data();
  options.decisions = &decision;
  options.decision_count = 1;
  options.tree = tree;
  options.ring = ranks == 3 ? ring : nullptr;
  ferrule_group* group = nullptr;
  if (ferrule_group_create(&options, &group, nullptr, 0) != FERRULE_OK) std::abort();
  for (const int peer : peers) {
    std::vector<std::uint8_t> stream;
    if (input.byte() % 4 != 0) plausible_header(input, operation, stream);
    for (std::size_t n = input.byte(); n > 0; --n) stream.push_back(input.byte());
    if (::send(peer, stream.data(), stream.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) std::abort();
    ::shutdown(peer, SHUT_WR);
  }
  (void)ferrule_run(group, &operation, 1, kTimeout);
  (void)ferrule_run(group, &operation, 1, kTimeout);
  ferrule_group_destroy(group);
  for (const int peer : peers) ::close(peer);
  return 0;
}
