// An emulated cable: what its arithmetic does by a clock of the test's own, and that the threads really carry packets.
#include "emulation/shaper/shaper.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "testing.h"

namespace {

using namespace ferrule::shaper;

constexpr Time kMicro = 1'000;
constexpr Time kMilli = 1'000'000;
constexpr Time kSecond = 1'000'000'000;

struct Frame {
  std::uint8_t to = 2;  // last byte of an address
  std::uint8_t from = 1;
  std::uint32_t number = 0;
};

std::vector<std::byte> bytes_of(const Frame& frame, std::size_t size) {
  std::vector<std::byte> bytes(kHeaderBytes + size);
  bytes[kHeaderBytes] = bytes[kHeaderBytes + 6] = std::byte{2};  // addresses of our own making
  if (frame.to == 0xFF) bytes[kHeaderBytes] = std::byte{0xFF};
  bytes[kHeaderBytes + 5] = std::byte{frame.to};
  bytes[kHeaderBytes + 11] = std::byte{frame.from};
  std::memcpy(bytes.data() + kHeaderBytes + kEthernetBytes, &frame.number, sizeof frame.number);
  return bytes;
}

Packet packet(const Frame& frame, std::size_t size) { return Packet(bytes_of(frame, size)); }

std::uint32_t number_of(const Packet& packet) {
  std::uint32_t number;
  std::memcpy(&number, packet.bytes().data() + kHeaderBytes + kEthernetBytes, sizeof number);
  return number;
}

struct Arrival {
  Time at;
  int end;
  std::uint32_t number;
};

// Runs a join by a clock of its own: every moment at which it wants to do something, up to `until`.
struct Bench {
  explicit Bench(int ends, std::uint64_t seed = 1) : join(ends, seed) {}

  void run(Time until) {
    for (;;) {
      const Time next = join.next();
      if (next > until) break;
      now = std::max(now, next);
      move();
    }
    now = until;
  }
  void move() {
    join.pump(now, [&](int end, Packet packet) { arrivals.push_back({now, end, number_of(packet)}); });
  }
  void send(int end, const Frame& frame, std::size_t size) {
    join.arrive(end, packet(frame, size), now);
    move();
  }

  Join join;
  Time now = kSecond;
  std::vector<Arrival> arrivals;
};

void a_frame_takes_its_bytes_time_and_the_delay() {
  Bench bench(2);
  bench.join.set(0, {.rate = 1e9, .delay = 10 * kMicro, .overhead = 24});
  for (std::uint32_t i = 0; i < 3; ++i) bench.send(0, {.number = i}, 1226);  // 1250 on the wire: 10 µs
  bench.run(2 * kSecond);
  CHECK(bench.arrivals.size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(bench.arrivals[i].number == i && bench.arrivals[i].end == 1);
    CHECK(bench.arrivals[i].at == kSecond + (10 * (i + 1) + 10) * kMicro);
  }
  // The other direction has no limits.
  bench.send(1, {}, 1226);
  CHECK(bench.arrivals.size() == 4 && bench.arrivals[3].end == 0 && bench.arrivals[3].at == 2 * kSecond);
  const Counters counters = bench.join.counters(0);
  CHECK(counters.frames == 3 && counters.delivered_bytes == 3 * 1226 && counters.queued_bytes == 0);
}

void a_rate_is_exact_over_many_frames_also_when_looked_at_late() {
  for (const Time late : {Time{0}, 7 * kMicro, 300 * kMicro}) {
    Bench bench(2);
    bench.join.set(0, {.rate = 2.5e9});
    std::size_t bytes = 0;
    for (std::uint32_t i = 0; i < 2000; ++i) {
      const std::size_t size = 60 + i * 7 % 1455;
      bytes += size;
      bench.send(0, {.number = i}, size);
    }
    const Time begin = bench.now;
    while (bench.join.next() != kNever) {
      bench.now = std::max(bench.now, bench.join.next()) + late;
      bench.move();
    }
    const double expected = static_cast<double>(bytes) * 8 / 2.5;
    CHECK(std::abs(static_cast<double>(bench.now - begin - late) - expected) <= 2.0 + static_cast<double>(late));
    CHECK(bench.arrivals.size() == 2000);
  }
}

void many_segments_in_one_packet_count_as_they_are_on_the_wire() {
  std::vector<std::byte> bytes(kHeaderBytes + 66 + 5 * 1448 + 10);
  const std::uint16_t fields[] = {66, 1448, 34, 16};  // header hint, segment, start and place of the checksum
  bytes[0] = std::byte{1};
  bytes[1] = std::byte{1};
  std::memcpy(bytes.data() + 2, fields, sizeof fields);
  bytes[kHeaderBytes + 34 + 12] = std::byte{0x80};  // 32 bytes of TCP header
  const Extent extent = extent_of(bytes);
  CHECK(extent.frames == 6);
  CHECK(extent.bytes == 5 * 1448 + 10 + 6 * 66);
  CHECK(lacks_checksum(bytes));
  // Whatever else is there must not be read beyond its end.
  for (std::size_t size = 0; size < bytes.size(); size += 7) (void)extent_of(std::span(bytes).first(size));
}

void the_queue_is_bounded_in_bytes_and_counts_what_it_drops() {
  Bench bench(2);
  bench.join.set(0, {.rate = 1e6, .queue = 5000});
  for (std::uint32_t i = 0; i < 20; ++i) bench.send(0, {.number = i}, 1000);
  CHECK(bench.join.counters(0).queued_bytes == 5000);
  CHECK(bench.join.counters(0).overflowed == 14);  // one is being sent, five wait
  bench.run(10 * kSecond);
  CHECK(bench.arrivals.size() == 6 && bench.arrivals.back().number == 5);
}

void chance_follows_the_seed_and_the_given_frequency() {
  const auto lost = [](std::uint64_t seed) {
    Bench bench(2, seed);
    bench.join.set(0, {.loss = 0.1, .duplicate = 0.02});
    std::vector<std::uint32_t> arrived;
    for (std::uint32_t i = 0; i < 5000; ++i) bench.send(0, {.number = i}, 100);
    for (const Arrival& arrival : bench.arrivals) arrived.push_back(arrival.number);
    const Counters counters = bench.join.counters(0);
    CHECK(arrived.size() == counters.frames - counters.lost + counters.duplicated);
    CHECK(counters.lost > 400 && counters.lost < 600);
    CHECK(counters.duplicated > 50 && counters.duplicated < 130);
    return arrived;
  };
  CHECK(lost(1) == lost(1));
  CHECK(lost(1) != lost(2));
}

void corruption_changes_one_bit_behind_the_addresses() {
  Bench bench(2);
  bench.join.set(0, {.corrupt = 1});
  const std::vector<std::byte> sent = bytes_of({}, 200);
  for (int i = 0; i < 100; ++i) {
    bench.join.arrive(0, Packet(sent), bench.now);
    bench.join.pump(bench.now, [&](int, Packet arrived) {
      int bits = 0;
      for (std::size_t at = 0; at < sent.size(); ++at) {
        const std::byte differs = sent[at] ^ arrived.bytes()[at];
        if (differs != std::byte{0}) CHECK(at >= kHeaderBytes + kEthernetBytes);
        bits += std::popcount(std::to_integer<unsigned>(differs));
      }
      CHECK(bits == 1);
    });
  }
  CHECK(bench.join.counters(0).corrupted == 100);
  // What has no checksum yet is lost instead, as by a network card.
  std::vector<std::byte> unchecked = sent;
  unchecked[0] = std::byte{1};
  bench.join.arrive(0, Packet(unchecked), bench.now);
  bench.join.pump(bench.now, [](int, Packet) { CHECK(false); });
  CHECK(bench.join.counters(0).corrupted == 101);
}

void jitter_keeps_the_order_and_reordering_does_not() {
  Bench bench(2);
  bench.join.set(0, {.delay = 100 * kMicro, .jitter = 50 * kMicro});
  for (std::uint32_t i = 0; i < 1000; ++i) {
    bench.send(0, {.number = i}, 100);
    bench.run(bench.now + 20 * kMicro);
  }
  bench.run(bench.now + kMilli);
  CHECK(bench.arrivals.size() == 1000);
  bool varies = false;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    CHECK(bench.arrivals[i].number == i);
    const Time taken = bench.arrivals[i].at - (kSecond + i * 20 * kMicro);
    CHECK(taken >= 50 * kMicro && taken <= 150 * kMicro);
    varies |= taken > 120 * kMicro;
  }
  CHECK(varies);

  Bench other(2);
  other.join.set(0, {.delay = 10 * kMicro, .reorder = 0.1});
  for (std::uint32_t i = 0; i < 1000; ++i) {
    other.send(0, {.number = i}, 100);
    other.run(other.now + 20 * kMicro);
  }
  other.run(other.now + kMilli);
  CHECK(other.arrivals.size() == 1000);
  CHECK(!std::ranges::is_sorted(other.arrivals, {}, &Arrival::number));
}

// How many of a tenth of a second's frames arrive when the ends send as much as they can: both, or the first alone.
std::pair<int, int> under_load(double collapse, bool both) {
  Bench bench(2);
  for (const int end : {0, 1}) bench.join.set(end, {.rate = 1e9, .collapse = collapse, .queue = 50000});
  while (bench.now < kSecond + 100 * kMilli) {
    for (int i = 0; i < 4; ++i) {
      bench.send(0, {}, 1250);
      // What the receiver of a stream says in return is no load.
      if (both || i == 0) bench.send(1, {}, both ? 1250 : 60);
    }
    bench.run(bench.now + 20 * kMicro);
  }
  std::pair<int, int> counts;
  for (const Arrival& arrival : bench.arrivals) ++(arrival.end == 1 ? counts.first : counts.second);
  return counts;
}

void both_directions_under_load_collapse() {
  const auto [full, back] = under_load(0.6, false);
  CHECK(full > 9'900);
  CHECK(back > 4'900);
  const auto [one, other] = under_load(0.6, true);
  CHECK(one + other > 5'500 && one + other < 6'500);
  CHECK(std::abs(one - other) < 300);
  const auto [duplex, duplex_back] = under_load(0, true);
  CHECK(duplex > 9'900 && duplex_back > 9'900);
}

// The same with a thread that wakes every ten milliseconds only: what it finds, it sends as it would have been sent.
void a_backlog_collapses_like_anything_else() {
  Bench bench(2);
  for (const int end : {0, 1}) bench.join.set(end, {.rate = 1e9, .collapse = 0.6, .queue = 0});
  for (int wake = 0; wake < 10; ++wake) {
    for (int i = 0; i < 1000; ++i) {  // 10 us each
      bench.now += 10 * kMicro;
      for (const int end : {0, 1}) bench.join.arrive(end, packet({}, 1250), bench.now);
    }
    bench.move();
  }
  const auto one = std::ranges::count(bench.arrivals, 1, &Arrival::end);
  const auto other = static_cast<std::ptrdiff_t>(bench.arrivals.size()) - one;
  CHECK(one + other > 5'500 && one + other < 6'500);
  CHECK(std::abs(one - other) < 300);
}

void flow_stops_and_goes_on() {
  Bench bench(2);
  const Shape moves{.rate = 1e9, .delay = kMilli};
  bench.join.set(0, moves);
  bench.send(0, {.number = 1}, 1000);
  Shape stalled = moves;
  stalled.flow = Flow::stalled;
  bench.join.set(0, stalled);
  bench.send(0, {.number = 2}, 1000);
  bench.run(2 * kSecond);
  CHECK(bench.arrivals.empty());
  bench.join.set(0, moves);
  bench.run(3 * kSecond);
  CHECK(bench.arrivals.size() == 2);
  // A one-way cut loses what is under way, and only in its direction.
  bench.send(0, {.number = 3}, 1000);
  Shape mute = moves;
  mute.flow = Flow::mute;
  bench.join.set(0, mute);
  bench.send(0, {.number = 4}, 1000);
  bench.send(1, {.number = 5}, 1000);
  bench.run(4 * kSecond);
  CHECK(bench.arrivals.size() == 3 && bench.arrivals.back().number == 5);
  CHECK(bench.join.counters(0).cut == 2);
  bench.join.set(0, moves);
  bench.send(0, {.number = 6}, 1000);
  bench.join.clear();
  bench.run(5 * kSecond);
  CHECK(bench.arrivals.size() == 3);
}

void a_switch_learns_where_everybody_is() {
  Bench bench(4);
  const auto ends = [&] {
    std::vector<int> found;
    for (const Arrival& arrival : std::exchange(bench.arrivals, {})) found.push_back(arrival.end);
    return found;
  };
  bench.send(0, {.to = 12, .from = 10}, 100);
  CHECK((ends() == std::vector{1, 2, 3}));
  bench.send(2, {.to = 10, .from = 12}, 100);
  CHECK((ends() == std::vector{0}));
  bench.send(0, {.to = 12, .from = 10}, 100);
  CHECK((ends() == std::vector{2}));
  bench.send(0, {.to = 0xFF, .from = 10}, 100);
  CHECK((ends() == std::vector{1, 2, 3}));
  // What is sent to a station behind the same end goes nowhere.
  bench.send(0, {.to = 10, .from = 11}, 100);
  CHECK(ends().empty());
  // The port to one end carries no more than that end's rate, whoever sends.
  for (int end = 0; end < 4; ++end) bench.join.set(end, {.rate = 1e9});
  const Time begin = bench.now;
  for (const int end : {0, 1, 3}) bench.send(end, {.to = 12, .from = static_cast<std::uint8_t>(20 + end)}, 1250);
  bench.run(begin + kSecond);
  CHECK(bench.arrivals.size() == 3);
  CHECK(bench.arrivals.back().at == begin + 40 * kMicro);
}

void a_pacer_sleeps_most_of_the_time_and_polls_within_its_means() {
  Pacer pacer;
  constexpr Time kLongAgo = 0;
  CHECK(pacer.sleep(kSecond, kNever, kLongAgo, true) == kNever);
  CHECK(pacer.sleep(kSecond, kSecond, kLongAgo, false) == 0);
  CHECK(pacer.sleep(kSecond, kSecond + kMilli, kLongAgo, true) == kMilli - pacer.margin());
  for (int i = 0; i < 1000; ++i) pacer.slept(kMilli, kMilli + 2 * kMicro);
  CHECK(pacer.margin() < 10 * kMicro);
  pacer.slept(kMilli, kMilli + 20 * kMicro);
  CHECK(pacer.margin() == 25 * kMicro);
  CHECK(pacer.sleep(kSecond, kSecond + 10 * kMicro, kLongAgo, false) == 0);
  pacer.polled(kSecond);
  CHECK(pacer.sleep(kSecond, kSecond + 10 * kMicro, kLongAgo, false) == 10 * kMicro);
  // Where nobody else needs the processor it waits awake for the answer.
  CHECK(pacer.sleep(kSecond, kSecond + 10 * kMicro, kLongAgo, true) == 0);
  CHECK(pacer.sleep(kSecond, kNever, kSecond - 100 * kMicro, true) == 0);
  CHECK(pacer.sleep(kSecond, kNever, kSecond - 100 * kMicro, false) == kNever);
}

void threads_carry_packets_between_sockets() {
  Shaper shaper(2);
  for (int cable = 0; cable < 3; ++cable) {
    int one[2];
    int other[2];
    CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, one) == 0);
    CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, other) == 0);
    const int number = shaper.join({one[1], other[1]}, 1);
    shaper.worker(number).set(number, 0, {.rate = 1e9, .delay = 3 * kMilli});
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < 20; ++i) {
      const std::vector<std::byte> sent = bytes_of({.number = i}, i % 2 == 0 ? 60 : 60'000);
      CHECK(::write(one[0], sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
      std::vector<std::byte> got(70'000);
      const ssize_t size = ::read(other[0], got.data(), got.size());
      CHECK(size == static_cast<ssize_t>(sent.size()));
      got.resize(sent.size());
      CHECK(got == sent);
    }
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(60));
    const EndCounters counters = shaper.worker(number).counters(number, 0);
    CHECK(counters.frames.delivered_frames == 20 && counters.unsent == 0);
    bool refused = false;
    try {
      shaper.worker(number).set(number, 2, {});
    } catch (const std::exception&) {
      refused = true;
    }
    CHECK(refused);
    ::close(one[0]);  // the cable stays, and nobody is woken for it again and again
    if (cable == 1) shaper.worker(number).remove(number);
    ::close(other[0]);
  }
}

double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

void a_thread_that_has_obeyed_sleeps_again() {
  Shaper shaper(1);
  int one[2];
  int other[2];
  CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, one) == 0);
  CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, other) == 0);
  const int cable = shaper.join({one[1], other[1]}, 1);
  const std::vector<std::byte> frame = bytes_of({}, 60);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> over{false};
    {
      // Orders come while the thread is awake, as a packet has just gone through.
      std::jthread traffic([&] {
        std::vector<std::byte> got(frame.size());
        while (!over.load()) {
          CHECK(::write(one[0], frame.data(), frame.size()) == static_cast<ssize_t>(frame.size()));
          CHECK(::read(other[0], got.data(), got.size()) == static_cast<ssize_t>(frame.size()));
        }
      });
      for (int order = 0; order < 500; ++order) shaper.worker(cable).set(cable, 0, {.delay = order % 2 * kMicro});
      over.store(true);
    }
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(processor_seconds() - before < 0.02);
  }
  ::close(one[0]);
  ::close(other[0]);
}

}  // namespace

int main() {
  a_frame_takes_its_bytes_time_and_the_delay();
  a_rate_is_exact_over_many_frames_also_when_looked_at_late();
  many_segments_in_one_packet_count_as_they_are_on_the_wire();
  the_queue_is_bounded_in_bytes_and_counts_what_it_drops();
  chance_follows_the_seed_and_the_given_frequency();
  corruption_changes_one_bit_behind_the_addresses();
  jitter_keeps_the_order_and_reordering_does_not();
  both_directions_under_load_collapse();
  a_backlog_collapses_like_anything_else();
  flow_stops_and_goes_on();
  a_switch_learns_where_everybody_is();
  a_pacer_sleeps_most_of_the_time_and_polls_within_its_means();
  threads_carry_packets_between_sockets();
  a_thread_that_has_obeyed_sleeps_again();
}
