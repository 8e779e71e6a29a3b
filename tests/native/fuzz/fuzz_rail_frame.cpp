// Whatever a peer writes to its rails, this end neither crashes nor touches memory that was not offered.
//
//   CXX=clang++ cmake -S native -B build/fuzz -DFERRULE_PYTHON=OFF -DFERRULE_FUZZ=ON
//
// The input is a list of actions: frames with any values in their headers and raw bytes on either rail, and in
// between the calls that an operation makes.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fuzz/fuzz_input.h"
#include "transports/tcp/tcp_channel.h"

namespace {

using namespace ferrule;

void put(int fd, const void* data, std::size_t size) { (void)::send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL); }

// A header that is valid more often than not: most values near what this end expects.
void put_frame(int fd, Input& input, std::uint64_t near) {
  FrameHeader header;
  const std::uint8_t shape = input.byte();
  header.kind = static_cast<FrameKind>(1 + shape % 4);
  header.flags = (shape >> 2) & 1;
  header.length = header.kind == FrameKind::data           ? input.take<std::uint16_t>()
                  : header.kind == FrameKind::close_notice ? sizeof(CloseNotice)
                                                           : 0;
  header.offset = near + input.take<std::int16_t>();
  header.received = input.byte();
  if ((shape & 0x80) != 0) header.held = input.take<std::uint32_t>();
  if ((shape & 0x40) != 0) header.offset = input.take<std::uint64_t>();
  if ((shape & 0x20) != 0) header.length = input.take<std::uint32_t>();
  if ((shape & 0x10) != 0) header.received = input.take<std::uint64_t>();
  put(fd, &header, sizeof header);
  std::vector<std::uint8_t> payload(std::min<std::size_t>(header.length, (shape & 0x08) != 0 ? input.byte() : 70000),
                                    shape);
  const auto given = input.some(std::min<std::size_t>(payload.size(), 64));
  std::copy(given.begin(), given.end(), payload.begin());
  put(fd, payload.data(), payload.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  std::array<std::array<int, 2>, 2> pairs{};
  for (auto& pair : pairs) {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) != 0) std::abort();
  }
  const std::array<int, 2> mine{pairs[0][0], pairs[1][0]};
  {
    TcpChannel channel({0, 1, -1, 7}, mine, 0, std::chrono::seconds(1));
    std::vector<std::byte> into;
    std::size_t filled = 0;
    std::uint64_t taken = 0;
    const std::vector<std::byte> out(300000);
    while (!input.empty()) {
      const std::uint8_t action = input.byte();
      const int fd = pairs[(action >> 3) & 1][1];
      try {
        switch (action & 7) {
          case 0: {
            const auto raw = input.some(input.byte());
            put(fd, raw.data(), raw.size());
            break;
          }
          case 1:
          case 2:
            put_frame(fd, input, taken);
            break;
          case 3:
          case 4:
            if (filled == into.size()) {
              into.assign(1 + input.take<std::uint32_t>() % ((action & 16) != 0 ? 200000 : 300), std::byte{0});
              into.shrink_to_fit();  // so that a byte beyond is somebody else's
              filled = 0;
            }
            if (const std::size_t n = channel.try_recv(std::span(into).subspan(filled))) {
              filled += n;
              taken += n;
            }
            break;
          case 5: {
            const ConstBytes parts[] = {ConstBytes(out).first((action & 16) != 0 ? out.size() : input.byte())};
            (void)channel.try_send(parts);
            break;
          }
          case 6:
            channel.maintain();
            (void)channel.holds_callers_memory();
            break;
          case 7:
            if ((action & 16) != 0) ::shutdown(fd, SHUT_WR);
            channel.on_poll({mine[(action >> 3) & 1], POLLIN, POLLIN});
            break;
        }
      } catch (const Failure&) {
        break;  // the peer is given up, as it should be
      }
    }
    if (channel.gone()) (void)channel.loss();
  }
  for (const auto& pair : pairs) ::close(pair[1]);
  return 0;
}
