// Channels over queue pairs that are not there: how they end, and what is said of it.
#include "transports/verbs/verbs_channel.h"

#include <sys/socket.h>

#include <string>

#include "transports/fake_queue_pair.h"

namespace ferrule {
namespace {

constexpr std::uint64_t kEpoch = 4711;
constexpr std::size_t kDepth = 32;
constexpr PipeShape kShape{8, 256};

// The channel of rank 0 and what rank 1 has: its socket, and the far ends of the wires.
struct Fixture {
  Fixture() {
    require(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "no sockets");
    auto made = std::make_unique<FakeQueuePair>(out, in, kShape.memory_bytes(kDepth), kShape.slot_bytes, kDepth, true);
    queue = made.get();
    auto pipe = std::make_unique<VerbsPipe>(std::move(made), PipeEnd{kShape, 1});
    pipe->meet({kShape, 2});
    channel = std::make_unique<VerbsChannel>(Ends{0, 1, sockets[0], kEpoch}, std::move(pipe), "rxe0");
  }
  ~Fixture() {
    if (sockets[1] >= 0) ::close(sockets[1]);
  }

  void say(Op op, Status status, int culprit, const char* text) {
    CloseNotice notice;
    notice.header.epoch = kEpoch;
    notice.header.call.op = op;
    notice.header.call.reduction = static_cast<std::uint8_t>(status);
    notice.header.call.root = culprit;
    std::string(text).copy(notice.text.data(), notice.text.size() - 1);
    require(::send(sockets[1], &notice, sizeof notice, 0) == sizeof notice, "no close notice");
  }
  void hang_up() {
    ::close(sockets[1]);
    sockets[1] = -1;
  }
  void send_word() {
    const std::byte word[4] = {};
    const ConstBytes parts[] = {word};
    require(channel->try_send(parts) == sizeof word, "no room");
  }
  // What try_recv throws.
  Failure failure() {
    std::byte into[4];
    try {
      (void)channel->try_recv(into);
    } catch (const Failure& failure) {
      return failure;
    }
    require(false, "no failure");
    return {Status::ok, -1, ""};
  }

  FakeWire out;
  FakeWire in;
  int sockets[2] = {-1, -1};
  FakeQueuePair* queue = nullptr;
  std::unique_ptr<VerbsChannel> channel;
};

void expect(const Failure& failure, Status status, int rank, const char* words) {
  require(failure.status == status, "another status");
  require(failure.rank == rank, "another rank");
  require(failure.message.find(words) != std::string::npos, failure.message.c_str());
}

void cut_cable_is_named() {
  Fixture fixture;
  fixture.queue->break_with("transport retry counter exceeded");
  expect(fixture.failure(), Status::peer_lost, 1, "rank 1 cannot be reached over rxe0 (transport retry counter");
}

void the_peers_own_words_come_first() {
  Fixture fixture;
  fixture.say(Op::abort, Status::peer_lost, 2, "rank 2 died");
  fixture.hang_up();
  fixture.queue->break_with("flushed");
  expect(fixture.failure(), Status::peer_lost, 2, "rank 2 died");
}

void dead_peer_is_seen_by_a_sleeper() {
  Fixture fixture;
  std::vector<pollfd> polls;
  fixture.channel->add_polls({true, false}, polls);
  require(polls.size() == 2 && fixture.channel->patience() == Clock::duration::max(), "a sleeper needs both bells");
  fixture.hang_up();
  require(::poll(polls.data(), 2, 0) == 1, "no bell for a death");
  try {
    fixture.channel->on_poll(polls[0]);
    require(false, "a death is no failure");
  } catch (const Failure& failure) {
    expect(failure, Status::peer_lost, 1, "rank 1 died or was cut off");
  }
}

void departed_peer_is_no_failure_until_needed() {
  Fixture fixture;
  fixture.say(Op::goodbye, Status::aborted, 1, "");
  fixture.hang_up();
  std::vector<pollfd> polls;
  fixture.channel->add_polls({false, false}, polls);
  require(polls.size() == 1, "who wants nothing needs no bell");
  fixture.channel->on_poll(polls[0]);
  require(fixture.channel->gone() && fixture.channel->departed(), "it did not depart");
}

void wrong_bytes_name_the_peer() {
  Fixture fixture;
  std::vector<std::byte> frame(sizeof(VerbsFrameHeader));
  fixture.in.under_way.push_back({frame, false});
  FakeQueuePair::deliver(fixture.in, false, true);
  expect(fixture.failure(), Status::mismatch, 1, "rank 1 sent a frame of another connection on rxe0");
}

// A close waits for what was sent, but never for a peer that is gone, that wants no more, or that cannot be reached.
void close_waits_for_nobody_who_is_gone() {
  const auto seconds = [](auto&& prepare) {
    Fixture fixture;
    fixture.send_word();
    prepare(fixture);
    const Clock::time_point begin = Clock::now();
    fixture.channel.reset();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  constexpr double kAtOnce = 1;
  require(seconds([](Fixture& fixture) { fixture.hang_up(); }) < kAtOnce, "waited for a dead peer");
  require(seconds([](Fixture& fixture) { fixture.say(Op::goodbye, Status::ok, 1, ""); }) < kAtOnce,
          "for a departed one");
  require(seconds([](Fixture& fixture) { fixture.queue->break_with("gone"); }) < kAtOnce, "for a broken queue pair");
  require(seconds([](Fixture& fixture) { fixture.channel->shut_down(); }) < kAtOnce, "after an abort");
  require(seconds([](Fixture&) {}) >= kAtOnce, "not for what is under way");
}

}  // namespace
}  // namespace ferrule

int main() {
  using namespace ferrule;
  cut_cable_is_named();
  the_peers_own_words_come_first();
  dead_peer_is_seen_by_a_sleeper();
  departed_peer_is_no_failure_until_needed();
  wrong_bytes_name_the_peer();
  close_waits_for_nobody_who_is_gone();
  std::puts("ok");
  return 0;
}
