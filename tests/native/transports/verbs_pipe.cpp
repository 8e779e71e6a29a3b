// The pipe of frames over queue pairs that are not there: order, credits, losses, wrong frames, broken queue pairs.
#include "transports/verbs/verbs_pipe.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "transports/fake_queue_pair.h"

namespace ferrule {
namespace {

constexpr std::size_t kDepth = 24;

// Two ends and the wires between them.
struct Pair {
  Pair(bool reliable, PipeShape shape_a, PipeShape shape_b) : reliable(reliable) {
    for (int i = 0; i < 2; ++i) {
      const PipeEnd mine{i == 0 ? shape_a : shape_b, 100u + static_cast<std::uint32_t>(i)};
      auto made = std::make_unique<FakeQueuePair>(wires[i], wires[1 - i], mine.shape.memory_bytes(kDepth),
                                                  mine.shape.slot_bytes, kDepth, reliable);
      queues[i] = made.get();
      ends[i] = std::make_unique<VerbsPipe>(std::move(made), mine);
    }
    ends[0]->meet({shape_b, 101});
    ends[1]->meet({shape_a, 100});
  }

  void deliver_all() {
    while (FakeQueuePair::deliver(wires[0], false, reliable) || FakeQueuePair::deliver(wires[1], false, reliable)) {
    }
  }

  const bool reliable;
  FakeWire wires[2];  // wires[i] leads away from ends[i]
  FakeQueuePair* queues[2];
  std::unique_ptr<VerbsPipe> ends[2];
};

std::byte pattern(std::size_t i, int end) {
  return static_cast<std::byte>(i * 31 + i / 251 + static_cast<std::size_t>(end) * 7);
}

// Both ends send a stream of random pieces and read it in other random pieces, while frames arrive when they like.
void streams(unsigned seed, bool reliable, double loss, PipeShape a, PipeShape b) {
  constexpr std::size_t kBytes = 60000;
  std::mt19937 random(seed);
  Pair pair(reliable, a, b);
  std::size_t sent[2] = {0, 0};
  std::size_t got[2] = {0, 0};
  std::bernoulli_distribution lose(loss);
  std::vector<std::byte> data[2];
  for (int end = 0; end < 2; ++end) {
    for (std::size_t i = 0; i < kBytes; ++i) data[end].push_back(pattern(i, end));
  }
  std::vector<std::byte> into(3000);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (got[0] != kBytes || got[1] != kBytes) {
    require(Clock::now() < deadline, "the streams got stuck");
    const int end = static_cast<int>(random() % 2);
    VerbsPipe& pipe = *pair.ends[end];
    switch (random() % 4) {
      case 0: {
        const ConstBytes rest = ConstBytes(data[end]).subspan(sent[end]);
        const std::size_t first = std::min<std::size_t>(rest.size(), random() % 40);
        const std::size_t second = std::min<std::size_t>(rest.size() - first, random() % 2000);
        const ConstBytes parts[] = {rest.first(first), {}, rest.subspan(first, second)};
        sent[end] += pipe.write(parts);
        break;
      }
      case 1: {
        const std::size_t n = pipe.read(Bytes(into).first(random() % into.size()));
        for (std::size_t i = 0; i < n; ++i) require(into[i] == pattern(got[end] + i, 1 - end), "a wrong byte");
        got[end] += n;
        break;
      }
      case 2:
        for (auto n = random() % 8; n > 0; --n) FakeQueuePair::deliver(pair.wires[end], lose(random), reliable);
        break;
      default:
        (void)pipe.prepare_sleep(true);
        pipe.take_events();
    }
  }
  if (loss > 0) require(pair.wires[0].lost + pair.wires[1].lost > 0, "nothing was lost");
}

// What a receiver that looks at nothing leaves room for, and that none of it needs the sender any more.
void runs_ahead() {
  const PipeShape shape{16, 256};
  Pair pair(true, shape, shape);
  const std::byte word[8] = {};
  const ConstBytes parts[] = {word};
  int ahead = 0;
  for (; pair.ends[0]->write(parts) != 0; pair.deliver_all()) ++ahead;
  require(ahead == 16, "as many messages fit as there are slots");
  pair.ends[0]->flush();
  pair.deliver_all();
  require(pair.queues[0]->drained(), "a frame is kept back");
  std::byte back[8];
  int got = 0;
  while (pair.ends[1]->read(back) != 0) ++got;
  require(got == ahead, "a message is missing");
  pair.deliver_all();
  require(pair.ends[0]->write(parts) == 8, "what was read makes no room");
}

void sleeper_wakes() {
  const PipeShape shape{8, 256};
  Pair pair(true, shape, shape);
  const std::byte word[8] = {};
  const ConstBytes parts[] = {word};
  pollfd bell{pair.ends[1]->event_fd(), POLLIN, 0};
  require(pair.ends[1]->prepare_sleep(true) == Clock::duration::max(), "nothing is there to stay awake for");
  require(::poll(&bell, 1, 0) == 0, "a bell without a frame");
  pair.ends[0]->write(parts);
  pair.deliver_all();
  require(::poll(&bell, 1, 0) == 1, "no bell for a frame");
  pair.ends[1]->take_events();
  // A frame that came before the bell was armed rings none: it must be found.
  require(pair.ends[1]->prepare_sleep(true) == Clock::duration::zero(), "asleep beside a frame");
}

void broken_queue_pair_gives_what_came() {
  const PipeShape shape{8, 256};
  Pair pair(true, shape, shape);
  const std::byte words[600] = {};
  const ConstBytes parts[] = {words};
  require(pair.ends[0]->write(parts) == sizeof words, "no room at the start");
  pair.deliver_all();
  pair.queues[1]->break_with("the cable is gone");
  std::byte back[1000];
  std::size_t got = 0;
  while (const std::size_t n = pair.ends[1]->read(Bytes(back).subspan(got))) got += n;
  require(got == sizeof words, "bytes that had arrived are lost");
  require(pair.ends[1]->broken() && pair.ends[1]->write(parts) == 0, "a broken queue pair takes bytes");
}

// A frame as the peer could send it, changed by `change`, must be refused.
template <class Change>
void refused(const char* words, bool reliable, Change&& change) {
  const PipeShape shape{8, 256};
  Pair pair(reliable, shape, shape);
  VerbsFrameHeader header{101, 0, 0, 4, VerbsFrameKind::data, 0};
  std::size_t size = sizeof header + 4;
  change(header, size);
  std::vector<std::byte> bytes(std::max(size, sizeof header));
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes.resize(size);
  pair.wires[0].under_way.push_back({bytes, false});
  pair.deliver_all();
  std::byte back[16];
  try {
    const std::size_t got = pair.ends[1]->read(back);
    require(*words == '\0' && got == 0, "a wrong frame was taken");
  } catch (const FrameError& error) {
    require(*words != '\0' && std::string(error.what()).find(words) != std::string::npos, error.what());
  }
}

void wrong_frames() {
  refused("another connection", true, [](VerbsFrameHeader& header, std::size_t&) { header.token = 100; });
  refused("too short", true, [](VerbsFrameHeader&, std::size_t& size) { size = 8; });
  refused("cut short", true, [](VerbsFrameHeader&, std::size_t& size) { size = 17; });
  refused("never sent", true, [](VerbsFrameHeader& header, std::size_t&) { header.consumed = 1; });
  refused("out of order", true, [](VerbsFrameHeader& header, std::size_t&) { header.sequence = 1; });
  refused("no known kind", true,
          [](VerbsFrameHeader& header, std::size_t&) { header.kind = static_cast<VerbsFrameKind>(77); });
  // Where frames may be lost, a gap is no fault, and an old frame is one that came twice.
  refused("", false, [](VerbsFrameHeader& header, std::size_t&) { header.sequence = 1; });
  refused("", false, [](VerbsFrameHeader& header, std::size_t&) { header.sequence = 0xffffffff; });
  // Nor is one of which a part was lost.
  refused("", false, [](VerbsFrameHeader&, std::size_t& size) { size = 17; });
}

void counts_wrap_around() {
  const std::uint64_t first = (std::uint64_t{1} << 32) - 2;
  SendWindow out(4, first);
  ReceiveWindow in(4, first);
  for (int i = 0; i < 8; ++i) {
    require(!out.full(), "the window is closed");
    const std::uint64_t frame = out.claim();
    require(out.post() == frame && !out.behind(), "posted another one");
    require(in.arrived(static_cast<std::uint32_t>(frame)) == ReceiveWindow::Order::next, "not the next");
    require(in.arrived(static_cast<std::uint32_t>(frame)) == ReceiveWindow::Order::seen, "not seen");
    require(in.arrived(static_cast<std::uint32_t>(frame + 2)) == ReceiveWindow::Order::gap, "no gap");
    in.consume(1);
    require(in.due(), "not due");
    require(out.acknowledge(in.announce()) && !in.due(), "not acknowledged");
    require(out.acknowledge(static_cast<std::uint32_t>(frame)), "an older word is no fault");
    require(!out.acknowledge(static_cast<std::uint32_t>(frame + 2)), "read what was not sent");
  }
}

void rewinding_stops_at_what_was_consumed() {
  SendWindow out(4);
  for (int i = 0; i < 4; ++i) {
    out.claim();
    out.post();
  }
  require(out.full(), "four of four");
  out.acknowledge(2);
  out.rewind(1);
  require(out.posted() == 2 && out.behind(), "sent again what was consumed");
  out.rewind(9);
  require(out.posted() == 2, "jumped ahead");
  out.acknowledge(4);
  require(!out.behind(), "what is consumed needs no sending");
}

}  // namespace
}  // namespace ferrule

int main() {
  using namespace ferrule;
  counts_wrap_around();
  rewinding_stops_at_what_was_consumed();
  runs_ahead();
  sleeper_wakes();
  broken_queue_pair_gives_what_came();
  wrong_frames();
  for (unsigned seed = 0; seed < 20; ++seed) {
    streams(seed, true, 0, {8, 128}, {8, 128});
    streams(seed, true, 0, {32, 1024}, {9, 300});
    streams(seed, false, 0, {16, 512}, {16, 512});
    streams(seed, false, 0.05, {16, 512}, {8, 256});
  }
  std::puts("ok");
  return 0;
}
