// The parts of a rail channel that touch no socket, against plain models of what they should do.
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "transports/message.h"
#include "transports/rail_wires.h"
#include "transports/tcp/rail_frame.h"
#include "transports/tcp/rail_inbound.h"
#include "transports/tcp/rail_outbound.h"

namespace {

using namespace ferrule;
using rails_test::require;

std::byte stream_byte(std::uint64_t position) { return static_cast<std::byte>(position * 2654435761u >> 13); }

std::vector<std::byte> stream(std::uint64_t begin, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = stream_byte(begin + i);
  return bytes;
}

// Pieces come in any order, cut anew and more than once, with and without memory for them.
void inbound(unsigned seed) {
  std::mt19937 random(seed);
  constexpr std::uint64_t kTotal = 100000;
  Inbound in;
  std::vector<std::byte> offer;
  std::size_t filled = 0;
  std::uint64_t taken = 0;
  std::vector<bool> there(kTotal, false);
  std::uint64_t received = 0;
  while (taken < kTotal) {
    if (filled == offer.size() && random() % 2 == 0) {
      offer.assign(std::min<std::uint64_t>(1 + random() % 10000, kTotal - taken), std::byte{0xEE});
      filled = 0;
    }
    const std::uint64_t begin =
        std::min(kTotal, received + random() % 20000 - std::min<std::uint64_t>(received, random() % 4000));
    const std::size_t size = std::min<std::uint64_t>(random() % 7000, kTotal - begin);
    const std::vector<std::byte> piece = stream(begin, size);
    if (filled != offer.size()) in.offer(std::span(offer).subspan(filled));
    const std::span<std::byte> direct = in.place(begin, size);
    if (!direct.empty() && random() % 2 == 0) {
      std::copy_n(piece.begin(), direct.size(), direct.begin());
      in.placed(begin, direct.size());
      std::fill_n(there.begin() + static_cast<std::ptrdiff_t>(begin), direct.size(), true);
    } else {
      in.store(begin, piece);
      std::fill_n(there.begin() + static_cast<std::ptrdiff_t>(begin), size, true);
    }
    while (received < kTotal && there[received]) ++received;
    require(in.received() == received, "received is the end of what has no gap");
    if (filled == offer.size()) continue;
    const std::size_t n = in.take();
    require(n == std::min<std::uint64_t>(received - taken, offer.size() - filled), "take gives all that is there");
    for (std::size_t i = 0; i < n; ++i)
      require(offer[filled + i] == stream_byte(taken + i), "bytes are at their place");
    filled += n;
    taken += n;
  }
  require(in.gaps() == 0 && in.taken() == kTotal, "nothing is left over");
}

// Every byte that is not acknowledged can be had again, and the ring is used up and freed for ever.
void outbound(unsigned seed) {
  std::mt19937 random(seed);
  Outbound out;
  std::map<std::uint64_t, OutFrame*> sent;
  const std::vector<std::byte> callers = stream(0, 1 << 20);
  std::vector<std::vector<std::byte>> keep;
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t begin = out.end();
    if (random() % 8 == 0) {
      const std::size_t at = random() % callers.size();
      sent[begin] =
          &out.refer(std::span(callers).subspan(at, std::min<std::size_t>(1 + random() % 9000, callers.size() - at)));
    } else {
      const std::size_t size =
          std::min<std::size_t>(1 + random() % (random() % 16 == 0 ? kMaxPayloadBytes : 3000), out.copy_room());
      if (size != 0) {
        std::vector<std::byte> bytes = stream(begin, size);
        const std::size_t half = random() % (size + 1);
        const std::array<std::span<const std::byte>, 2> parts{std::span(bytes).first(half),
                                                              std::span(bytes).subspan(half)};
        sent[begin] = &out.copy(parts, size);
      }
    }
    if (out.end() != begin) sent[begin]->rail = static_cast<int>(random() % 3);
    if (random() % 50 == 0) {
      out.give_up(static_cast<int>(random() % 3));
      while (OutFrame* const frame = out.lost()) {
        require(sent.at(frame->offset) == frame && frame->rail == kNoRail, "a lost frame is one that was sent");
        frame->rail = 0;
        out.found();
      }
    }
    if (random() % 4 == 0) {
      const std::uint64_t to = out.begin() + random() % (out.end() - out.begin() + 1);
      for (auto it = sent.begin(); it != sent.end() && it->second->end() <= to; it = sent.erase(it)) {
        if (it->second->ring == 0) continue;
        const std::vector<std::byte> expected = stream(it->first, it->second->size);
        require(std::memcmp(it->second->data, expected.data(), expected.size()) == 0, "a copy stays what it was");
      }
      out.acknowledge(to);
    }
  }
  out.acknowledge(out.end());
  require(!out.refers() && out.copy_room() == kMaxPayloadBytes, "all is free again");
}

void reader() {
  const FrameBounds bounds{1000, 500, sizeof(CloseNotice)};
  const auto good = [&](FrameHeader header) { return valid(header, bounds); };
  FrameHeader header;
  header.length = 10;
  header.offset = 990;
  header.received = 500;
  header.held = 500;
  require(good(header), "the last bytes of the window");
  const auto bad = [&](auto&& change) {
    FrameHeader changed = header;
    change(changed);
    require(!good(changed), "out of bounds");
  };
  bad([](FrameHeader& h) { h.magic = 1; });
  bad([](FrameHeader& h) { h.reserved = 1; });
  bad([](FrameHeader& h) { h.flags = 2; });
  bad([](FrameHeader& h) { h.kind = static_cast<FrameKind>(9); });
  bad([](FrameHeader& h) { h.kind = FrameKind::ack; });
  bad([](FrameHeader& h) { h.kind = FrameKind::close_notice; });
  bad([](FrameHeader& h) { h.length = 0; });
  bad([](FrameHeader& h) { h.length = 11; });
  bad([](FrameHeader& h) { h.offset = 991; });
  bad([](FrameHeader& h) { h.offset = ~std::uint64_t{0} - 4; });
  bad([](FrameHeader& h) { h.length = kMaxPayloadBytes + 1; });
  bad([](FrameHeader& h) { h.received = 501; });
  bad([](FrameHeader& h) { h.held = 501; });

  // Cut anywhere, the same frames come out.
  std::vector<std::byte> wire;
  for (std::uint64_t offset = 0; offset < 1000; offset += 100) {
    header.offset = offset;
    header.length = 100;
    const auto* const raw = reinterpret_cast<const std::byte*>(&header);
    wire.insert(wire.end(), raw, raw + sizeof header);
    const std::vector<std::byte> payload = stream(offset, 100);
    wire.insert(wire.end(), payload.begin(), payload.end());
  }
  for (std::size_t cut = 1; cut < 200; ++cut) {
    FrameReader frames;
    std::uint64_t position = 0;
    for (std::size_t at = 0; at < wire.size(); at += cut) {
      std::span<const std::byte> input = std::span(wire).subspan(at, std::min(cut, wire.size() - at));
      std::span<const std::byte> payload;
      for (;;) {
        const FrameReader::Step step = frames.step(input, bounds, payload);
        require(step != FrameReader::Step::broken, "whole frames");
        if (step == FrameReader::Step::more) break;
        if (step == FrameReader::Step::header) continue;
        for (const std::byte one : payload) require(one == stream_byte(position++), "payload in its order");
        require(frames.position() == position, "the position follows");
      }
    }
    require(position == 1000 && frames.left() == 0, "all frames came out");
  }
}

// A broken invariant ends the process there and then.
void broken_invariant() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    FrameReader frames;
    frames.skip(1);
    ::_exit(0);
  }
  int status = 0;
  require(::waitpid(child, &status, 0) == child, "the child ended");
  require(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "it was ended by the assertion");
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seeds = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 10;
  reader();
  broken_invariant();
  for (unsigned seed = 0; seed < seeds; ++seed) {
    inbound(seed);
    outbound(seed);
  }
  std::puts("ok");
  return 0;
}
