// Groups of two ranks whose rails are cut, reset, ended, garbled, slowed down and replaced while they work.
//
// A wire is cut by a socket filter that drops every segment, so the kernels see just what an unplugged cable shows.
#include <fcntl.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "group/group.h"
#include "transports/rail_wires.h"
#include "transports/tcp/tcp_channel.h"

namespace {

using namespace rails_test;
using namespace std::chrono_literals;
using ferrule::Dtype;
using ferrule::Group;
using ferrule::GroupOptions;
using ferrule::kStreams;
using ferrule::Op;
using ferrule::Operation;
using ferrule::RailState;
using ferrule::Reduction;
using ferrule::Status;

constexpr double kTimeout = 20;
using Seconds = std::chrono::duration<double>;
constexpr Seconds kStall{0.15};
constexpr std::uint64_t kEpoch = 4711;

std::uint32_t value(std::size_t i, int operation, int rank) {
  return static_cast<std::uint32_t>(i * 2654435761u + static_cast<std::uint32_t>(operation * 97 + rank));
}

std::vector<std::uint32_t> input(std::size_t count, int operation, int rank) {
  std::vector<std::uint32_t> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = value(i, operation, rank);
  return x;
}

// Two ranks in one process, and the wires between them: [stream][rail].
class Pair {
 public:
  explicit Pair(int rails, Seconds stall = kStall) {
    std::vector<std::array<int, 2>> fds[kStreams];
    for (int stream = 0; stream < kStreams; ++stream) {
      for (int rail = 0; rail < rails; ++rail) {
        wires[stream].push_back(std::make_unique<Wire>());
        fds[stream].push_back({wires[stream].back()->ends[0], wires[stream].back()->ends[1]});
      }
    }
    make(fds, stall);
  }
  // Rails of these speeds, in bytes per second.
  explicit Pair(std::initializer_list<double> speeds) {
    std::vector<std::array<int, 2>> fds[kStreams];
    for (int stream = 0; stream < kStreams; ++stream) {
      for (const double speed : speeds) {
        slow_.push_back(std::make_unique<SlowWire>(speed));
        fds[stream].push_back({slow_.back()->ends[0], slow_.back()->ends[1]});
      }
    }
    make(fds, kStall);
  }
  ~Pair() { destroy(); }
  void destroy() {
    for (auto& group : groups) group.reset();
  }

  std::vector<RailState> rails(int rank, int stream) const { return groups[rank]->rails(stream, 1 - rank); }
  std::uint64_t sent(int rank, int stream) const {
    std::uint64_t total = 0;
    for (const RailState& rail : rails(rank, stream)) total += rail.bytes_sent;
    return total;
  }
  std::uint32_t deaths(int rank, int stream) const {
    std::uint32_t total = 0;
    for (const RailState& rail : rails(rank, stream)) total += rail.deaths;
    return total;
  }
  void replace(int stream, int rail) {
    auto& wire = wires[stream][static_cast<std::size_t>(rail)];
    wire = std::make_unique<Wire>();
    for (int rank = 0; rank < 2; ++rank) {
      const auto status = groups[rank]->add_rail(stream, 1 - rank, rail, wire->ends[rank]);
      if (status != Status::ok) ::close(wire->ends[rank]);  // the group ended meanwhile
    }
  }

  std::unique_ptr<Group> groups[2];
  std::vector<std::unique_ptr<Wire>> wires[kStreams];

 private:
  void make(const std::vector<std::array<int, 2>> (&fds)[kStreams], Seconds stall) {
    for (int rank = 0; rank < 2; ++rank) {
      GroupOptions options;
      for (int stream = 0; stream < kStreams; ++stream) {
        std::vector<int> mine;
        for (const auto& pair : fds[stream]) mine.push_back(pair[static_cast<std::size_t>(rank)]);
        auto& channels = options.channels[static_cast<std::size_t>(stream)];
        channels.resize(2);
        channels[static_cast<std::size_t>(1 - rank)] =
            std::make_unique<ferrule::TcpChannel>(ferrule::Ends{rank, 1 - rank, -1, kEpoch}, mine, 0,
                                                  std::chrono::duration_cast<ferrule::Clock::duration>(stall));
      }
      options.rank = rank;
      options.epoch = kEpoch;
      options.wait = {20us, 50us, nullptr, nullptr};
      groups[rank] = std::make_unique<Group>(std::move(options));
    }
  }

  std::vector<std::unique_ptr<SlowWire>> slow_;
};

Operation operation_of(Op op, std::vector<std::uint32_t>& data, int peer) {
  Operation operation{};
  operation.op = op;
  operation.dtype = Dtype::i32;
  operation.reduction = Reduction::sum;
  operation.root = peer;
  operation.in = op == Op::send ? data.data() : nullptr;
  operation.out = data.data();
  operation.count = data.size();
  return operation;
}

Status run(const Pair& pair, int rank, Op op, std::vector<std::uint32_t>& data, double timeout = kTimeout) {
  const Operation operation = operation_of(op, data, 1 - rank);
  return pair.groups[rank]->run(&operation, 1, timeout);
}

void expect_ok(const Pair& pair, int rank, Status status) {
  if (status == Status::ok) return;
  const std::string message = pair.groups[rank]->failure().message;
  std::fprintf(stderr, "rank %d: status %d: %s\n", rank, static_cast<int>(status), message.c_str());
  for (int who = 0; who < 2; ++who) {
    for (int stream = 0; stream < kStreams; ++stream) {
      for (const RailState& rail : pair.rails(who, stream)) {
        std::fprintf(stderr, "rank %d stream %d: alive %d, sent %llu, received %llu, deaths %u\n", who, stream,
                     rail.alive, static_cast<unsigned long long>(rail.bytes_sent),
                     static_cast<unsigned long long>(rail.bytes_received), rail.deaths);
      }
    }
  }
  std::abort();
}

void both(const std::function<void(int)>& body) {
  std::thread other(body, 1);
  body(0);
  other.join();
}

// One operation of both ranks with every word checked: stream 0 reduces, stream 1 sends both ways at once.
void operate(const Pair& pair, int rank, int stream, int number, std::size_t count) {
  std::vector<std::uint32_t> mine = input(count, number, rank);
  std::vector<std::uint32_t> theirs = input(count, number, 1 - rank);
  if (stream == 0) {
    expect_ok(pair, rank, run(pair, rank, Op::all_reduce, mine));
    for (std::size_t i = 0; i < count; ++i) {
      require(mine[i] == value(i, number, 0) + value(i, number, 1), "a sum is wrong");
    }
  } else {
    std::vector<std::uint32_t> got(count);
    const Operation operations[] = {operation_of(Op::send, mine, 1 - rank), operation_of(Op::recv, got, 1 - rank)};
    expect_ok(pair, rank, pair.groups[rank]->run(operations, 2, kTimeout));
    require(got == theirs, "a message is wrong");
  }
}

std::size_t some_count(std::mt19937& random) {
  constexpr std::size_t kLimits[] = {1, 16, 3000, 30000, 80000, 400000, 2000000};
  return random() % kLimits[random() % std::size(kLimits)];
}

void expect_end(const Pair& pair, Status status, const char* words) {
  std::vector<std::uint32_t> data(10);
  require(run(pair, 1, Op::recv, data) == status, "a wait ends with its cause");
  const std::string message = pair.groups[1]->failure().message;
  require(message.find(words) != std::string::npos, message.c_str());
}

void operate_until(const Pair& pair, int rank, unsigned seed, int operations, const std::function<bool()>& enough) {
  std::mt19937 random(seed + 1);
  for (int number = 0;; ++number) {
    const int stream = static_cast<int>(random() % kStreams);
    operate(pair, rank, stream, number, some_count(random));
    std::vector<std::uint32_t> more(1, enough() ? 0 : 1);  // both must agree when to stop
    expect_ok(pair, rank, run(pair, rank, Op::all_reduce, more));
    if (number >= operations && more[0] == 0) break;
  }
}

// The only rail is reset, cut or taken away while it works: a fresh socket goes on where it was.
void lone(int harms, unsigned seed) {
  Pair pair(1, Seconds(30));
  std::atomic<int> harmed{0};
  std::thread villain([&] {
    std::mt19937 random(seed);
    for (; harmed < harms; ++harmed) {
      const int stream = static_cast<int>(random() % kStreams);
      const std::uint32_t before[] = {pair.deaths(0, stream), pair.deaths(1, stream)};
      const std::uint64_t when = pair.sent(0, stream) + random() % 3000000;
      wait_for([&] { return pair.sent(0, stream) >= when; }, "traffic goes on");
      const std::uint32_t kind = random() % 3;
      if (kind == 0) pair.wires[stream][0]->cut();
      if (kind == 1) {
        pair.wires[stream][0]->reset();
        const auto died = [&](int rank) { return pair.deaths(rank, stream) > before[rank]; };
        wait_for([&] { return died(0) && died(1); }, "both see that a rail was reset");
      }
      pair.replace(stream, 0);
    }
  });
  both([&](int rank) { operate_until(pair, rank, seed, 60, [&] { return harmed >= harms; }); });
  villain.join();
}

// Nothing takes its place.
void lone_is_lost() {
  Pair pair(1);
  std::thread waiting([&] { expect_end(pair, Status::peer_lost, "died or was cut off"); });
  pair.wires[1][0]->reset();
  waiting.join();
}

// The peer gives the only rail up, and its reset and the fresh socket are seen in the same look.
void reset_and_replaced() {
  using namespace ferrule;
  Wire old;
  Wire fresh;
  constexpr auto stall = 10ms;
  TcpChannel channel({0, 1, -1, kEpoch}, std::span(&old.ends[1], 1), 0, stall);
  old.reset();
  pollfd hangup{old.ends[1], POLLIN, 0};
  require(::poll(&hangup, 1, 1000) == 1, "the reset arrives");
  require(channel.add_rail(0, fresh.ends[1]), "a fresh rail is taken");
  const auto until = TestClock::now() + 20 * stall;
  while (TestClock::now() < until) {
    channel.maintain();
    ::poll(nullptr, 0, 1);
  }
  const std::vector<std::byte> message(100);
  const std::span<const std::byte> part(message);
  require(channel.try_send(std::span(&part, 1)) == message.size(), "the fresh rail sends");
  require(channel.rails()[0].deaths == 1, "one rail died");
  ::close(old.ends[0]);
  ::close(fresh.ends[0]);
}

enum class Fault { finish, reset, cut, cut_one_way, replaced };

// Ranks work while one rail after another is harmed in the middle of their traffic, and comes back.
void faults(int operations, int harms, unsigned seed) {
  Pair pair(3);
  std::atomic<int> harmed{0};
  std::thread villain([&] {
    std::mt19937 random(seed);
    for (; harmed < harms; ++harmed) {
      const int stream = static_cast<int>(random() % kStreams);
      const int rail = static_cast<int>(random() % 3);
      const std::uint32_t before[] = {pair.deaths(0, stream), pair.deaths(1, stream)};
      const std::uint64_t when = pair.sent(0, stream) + random() % 3000000;
      wait_for([&] { return pair.sent(0, stream) >= when; }, "traffic goes on");
      Wire& wire = *pair.wires[stream][static_cast<std::size_t>(rail)];
      const auto died = [&](int rank) { return pair.deaths(rank, stream) > before[rank]; };
      switch (static_cast<Fault>(random() % 5)) {
        case Fault::finish:
          wire.finish();
          wait_for([&] { return died(0) && died(1); }, "both see that a rail ended");
          break;
        case Fault::reset:
          wire.reset();
          wait_for([&] { return died(0) && died(1); }, "both see that a rail was reset");
          break;
        case Fault::cut:
          wire.cut();
          wait_for([&] { return died(0) || died(1); }, "a cut rail is given up");
          break;
        case Fault::cut_one_way:
          wire.cut(1);
          wait_for([&] { return died(0) || died(1); }, "a rail that works one way is given up");
          break;
        case Fault::replaced:
          break;
      }
      pair.replace(stream, rail);
    }
  });
  both([&](int rank) { operate_until(pair, rank, seed, operations, [&] { return harmed >= harms; }); });
  villain.join();
}

// Nobody drives a stream whose last send is over; its bytes arrive all the same when they were on a rail that was cut.
void cut_after_send() {
  Pair pair(2);
  pair.wires[1][0]->cut();
  both([&](int rank) {
    std::vector<std::uint32_t> data = input(100, 1, 0);
    if (rank == 1) data.assign(100, 0);
    expect_ok(pair, rank, run(pair, rank, rank == 0 ? Op::send : Op::recv, data));
    require(data == input(100, 1, 0), "a message is wrong");
  });
  wait_for([&] { return pair.deaths(0, 1) == 1; }, "the cut rail is given up while the stream is idle");
}

// Every cable out for a moment: operations wait, and go on where they were.
void cut_all() {
  Pair pair(2);
  std::thread villain([&] {
    wait_for([&] { return pair.sent(0, 0) > 1000000; }, "traffic goes on");
    for (const auto& wire : pair.wires[0]) wire->cut();
    const auto until = TestClock::now() + std::chrono::duration<double>(3 * kStall);
    wait_for([&] { return TestClock::now() > until; }, "time passes");
    for (const auto& wire : pair.wires[0]) wire->restore();
  });
  both([&](int rank) {
    for (int number = 0; number < 20; ++number) operate(pair, rank, 0, number, 1000000);
  });
  villain.join();
}

// Not reading is no fault of the wire: the window is shut, and nothing is in flight.
void unread() {
  Wire wires[2];
  const int fds[] = {wires[0].ends[0], wires[1].ends[0]};
  const auto stall = std::chrono::milliseconds(50);
  ferrule::TcpChannel channel({0, 1, -1, kEpoch}, fds, 0, stall);
  const std::vector<std::byte> much(64 << 20);
  std::size_t sent = 0;
  const auto until = TestClock::now() + 10 * stall;
  wait_for(
      [&] {
        const ferrule::ConstBytes parts[] = {ferrule::ConstBytes(much).subspan(sent)};
        sent += channel.try_send(parts);
        channel.maintain();
        return TestClock::now() > until;
      },
      "time passes");
  require(sent != 0 && sent < much.size(), "the window is shut");
  for (const ferrule::RailState& rail : channel.rails()) require(rail.alive && rail.deaths == 0, "a rail was given up");
  for (const Wire& wire : wires) ::close(wire.ends[1]);
}

// The wire is cut while the peer's window is shut: nothing is in flight then, only probes of the window.
void cut_while_shut() {
  Wire wires[2];
  const auto stall = std::chrono::milliseconds(50);
  const int fds[2][2] = {{wires[0].ends[0], wires[1].ends[0]}, {wires[0].ends[1], wires[1].ends[1]}};
  ferrule::TcpChannel from({0, 1, -1, kEpoch}, fds[0], 0, stall);
  ferrule::TcpChannel to({1, 0, -1, kEpoch}, fds[1], 0, stall);
  std::vector<std::byte> data(6 << 20);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 / 7);
  std::size_t sent = 0;
  const auto send = [&] {
    const ferrule::ConstBytes parts[] = {ferrule::ConstBytes(data).subspan(sent)};
    const std::size_t n = from.try_send(parts);
    sent += n;
    from.maintain();
    return n;
  };
  auto moved = TestClock::now();
  wait_for(
      [&] {
        if (send() != 0) moved = TestClock::now();
        return TestClock::now() > moved + stall;
      },
      "both wires are full");
  require(sent < data.size(), "the peer's window is shut");
  wires[0].cut();
  std::vector<std::byte> got(data.size());
  std::size_t received = 0;
  wait_for(
      [&] {
        send();
        received += to.try_recv(ferrule::Bytes(got).subspan(received));
        to.maintain();
        return received == got.size() && !from.holds_callers_memory();
      },
      "what was on the cut wire goes over the other one");
  require(got == data, "a message is wrong");
}

// What was sent before a close arrives after it, by the other rail if need be.
void close_after_send(bool cut) {
  Pair pair(2);
  std::vector<std::uint32_t> data[] = {input(100, 1, 0), input(60000, 2, 0), input(1, 3, 0)};
  if (cut) pair.wires[1][1]->cut();
  for (auto& message : data) expect_ok(pair, 0, run(pair, 0, Op::send, message));
  pair.groups[0]->close();
  for (const auto& message : data) {
    std::vector<std::uint32_t> got(message.size());
    expect_ok(pair, 1, run(pair, 1, Op::recv, got));
    require(got == message, "a message is wrong");
  }
  require(run(pair, 1, Op::recv, data[0]) == Status::peer_lost, "a closed group sends no more");
  const std::string message = pair.groups[1]->failure().message;
  require(message.find("closed the group") != std::string::npos, message.c_str());
}

void abort_tells_why() {
  Pair pair(2);
  std::thread waiting([&] { expect_end(pair, Status::aborted, "enough of it"); });
  pair.groups[0]->abort("enough of it");
  waiting.join();
}

void all_rails_end() {
  Pair pair(2);
  std::thread waiting([&] { expect_end(pair, Status::peer_lost, "died or was cut off"); });
  for (const auto& wire : pair.wires[1]) wire->finish();
  waiting.join();
}

void garbage() {
  Pair pair(2);
  both([&](int rank) { operate(pair, rank, 0, 1, 100000); });
  pair.wires[0][1]->garble(0);
  both([&](int rank) {
    for (int number = 0; number < 10; ++number) operate(pair, rank, 0, number, 100000);
  });
  wait_for([&] { return pair.deaths(0, 0) == 1 && pair.deaths(1, 0) == 1; }, "a rail that talks nonsense is given up");
  pair.replace(0, 1);
  both([&](int rank) { operate(pair, rank, 0, 2, 1000000); });
  for (int rank = 0; rank < 2; ++rank) {
    for (const RailState& rail : pair.rails(rank, 0)) require(rail.alive, "the rail is back");
  }
}

void no_such_rail() {
  Pair pair(1);
  const Wire spare;
  constexpr int stream = 0;
  require(pair.groups[0]->add_rail(stream, 1, 1, spare.ends[0]) == Status::invalid, "no such rail");
  require(pair.groups[0]->add_rail(stream, 0, 0, spare.ends[0]) == Status::invalid, "no such peer");
  for (const int end : spare.ends) ::close(end);
}

// The faster rail carries more, and both carry some.
void unequal() {
  Pair pair({80e6, 20e6});
  both([&](int rank) {
    for (int number = 0; number < 4; ++number) operate(pair, rank, 0, number, 2000000);
    for (int number = 0; number < 4; ++number) operate(pair, rank, 1, number, 1000000);
  });
  for (int stream = 0; stream < kStreams; ++stream) {
    const std::vector<RailState> rails = pair.rails(0, stream);
    require(rails[0].bytes_sent > rails[1].bytes_sent && rails[1].bytes_sent > 1000000, "the split follows the speeds");
  }
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const int harms = argc > 1 ? std::atoi(argv[1]) : 25;
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : std::random_device()();
  std::printf("seed %u\n", seed);
  std::fflush(stdout);
  const int before = open_descriptors();
  unread();
  cut_after_send();
  cut_all();
  cut_while_shut();
  close_after_send(false);
  close_after_send(true);
  abort_tells_why();
  all_rails_end();
  garbage();
  no_such_rail();
  unequal();
  lone_is_lost();
  reset_and_replaced();
  lone(harms, seed);
  faults(100, harms, seed);
  require(open_descriptors() == before, "every descriptor is closed");
  std::puts("ok");
  return 0;
}
