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
#include <memory>
#include <span>
#include <vector>

#include "fuzz/fuzz_input.h"
#include "group/group.h"
#include "transports/tcp/tcp_channel.h"

namespace {

using ferrule::Algorithm;
using ferrule::Dtype;
using ferrule::Group;
using ferrule::GroupOptions;
using ferrule::Op;
using ferrule::Operation;

constexpr std::uint64_t kEpoch = 4711;
constexpr double kTimeout = 1;
constexpr std::size_t kElements = 20;

// A header as a peer would send it for this operation, with some of its bytes changed.
void plausible_header(Input& input, const Operation& operation, std::vector<std::uint8_t>& into) {
  ferrule::MessageHeader header;
  header.epoch = kEpoch;
  header.call.op = operation.op == Op::recv ? Op::send : operation.op;
  header.call.dtype = static_cast<std::uint8_t>(operation.dtype);
  header.call.reduction = static_cast<std::uint8_t>(operation.reduction);
  header.call.sequence = 1;
  header.call.bytes = kElements * size_of(operation.dtype);
  std::uint8_t bytes[sizeof header];
  std::memcpy(bytes, &header, sizeof header);
  for (int changes = input.byte() % 4; changes > 0; --changes) bytes[input.byte() % sizeof bytes] ^= input.byte();
  into.insert(into.end(), bytes, bytes + sizeof bytes);
}

// The stream as a rail carries it: in one frame or two.
std::vector<std::uint8_t> framed(const std::vector<std::uint8_t>& stream, std::size_t cut) {
  std::vector<std::uint8_t> out;
  for (std::size_t at = 0; at < stream.size();) {
    ferrule::FrameHeader header;
    header.offset = at;
    header.length = static_cast<std::uint32_t>(at == 0 && cut != 0 ? std::min(cut, stream.size()) : stream.size() - at);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&header);
    out.insert(out.end(), bytes, bytes + sizeof header);
    const auto from = stream.begin() + static_cast<std::ptrdiff_t>(at);
    out.insert(out.end(), from, from + header.length);
    at += header.length;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  constexpr Op kOps[] = {Op::all_reduce, Op::all_gather, Op::reduce_scatter, Op::broadcast, Op::reduce,
                         Op::gather,     Op::scatter,    Op::all_to_all,     Op::recv,      Op::barrier};
  const int ranks = 2 + input.byte() % 2;
  std::vector<float> in(kElements * static_cast<std::size_t>(ranks));
  std::vector<float> out(in.size());
  Operation operation{};
  operation.op = kOps[input.byte() % std::size(kOps)];
  operation.dtype = Dtype::f32;
  operation.root = 1;
  operation.in = in.data();
  operation.out = out.data();
  operation.count = kElements;
  operation.quantized = operation.op == Op::all_reduce && input.byte() % 2;
  const auto algorithm = static_cast<Algorithm>(input.byte() % 5);

  GroupOptions options;
  std::vector<int> peers;
  for (auto& stream : options.channels) {
    stream.push_back(nullptr);
    for (int peer = 1; peer < ranks; ++peer) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) std::abort();
      stream.push_back(std::make_unique<ferrule::TcpChannel>(ferrule::Ends{0, peer, -1, kEpoch}, std::span(pair, 1)));
      peers.push_back(pair[1]);
    }
  }
  options.epoch = kEpoch;
  options.strategy.decisions = {{operation.op, ~std::uint64_t{0}, algorithm}};
  options.strategy.tree = ranks == 3 ? std::vector<int>{-1, 0, 0} : std::vector<int>{-1, 0};
  if (ranks == 3) options.strategy.ring = {0, 1, 2};
  auto group = std::make_unique<Group>(std::move(options));
  for (const int peer : peers) {
    std::vector<std::uint8_t> stream;
    if (input.byte() % 4 != 0) plausible_header(input, operation, stream);
    for (std::size_t n = input.byte(); n > 0; --n) stream.push_back(input.byte());
    if (input.byte() % 8 != 0) stream = framed(stream, input.byte());
    if (::send(peer, stream.data(), stream.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) std::abort();
    ::shutdown(peer, SHUT_WR);
  }
  (void)group->run(&operation, 1, kTimeout);
  (void)group->run(&operation, 1, kTimeout);
  group.reset();
  for (const int peer : peers) ::close(peer);
  return 0;
}
