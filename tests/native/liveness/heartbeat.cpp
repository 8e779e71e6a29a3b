// Heartbeats of several ranks in one process, and peers that the test plays itself.
#include "liveness/heartbeat.h"

#include <unistd.h>

#include <memory>
#include <optional>

#include "testing.h"
#ifdef __linux__
#include "transports/rail_wires.h"
#endif

namespace {

using ferrule::Failure;
using ferrule::Heartbeat;
using ferrule::HeartbeatKind;
using ferrule::HeartbeatMessage;
using ferrule::HeartbeatReader;
using ferrule::Presence;
using ferrule::Status;
using namespace std::chrono_literals;

constexpr std::uint64_t kEpoch = 4711;
constexpr std::uint64_t kGroup = 4712;
constexpr auto kInterval = 20ms;
constexpr auto kPatient = 60s;  // nobody falls silent that long, however busy the machine

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// A group as the heartbeat sees it: it only keeps what it is told.
class Listener {
 public:
  Listener(Heartbeat& heartbeat, std::vector<int> ranks, std::uint64_t epoch = kGroup)
      : heartbeat_(heartbeat),
        seat_(
            std::make_shared<Heartbeat::Seat>(epoch, std::move(ranks), [this](const Failure& cause) { keep(cause); })) {
    heartbeat_.join(seat_);
  }
  ~Listener() { heartbeat_.leave(seat_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The group ends here by itself.
  void end(const Failure& cause) {
    keep(cause);
    heartbeat_.tell(*seat_, cause);
  }
  bool ended() const {
    const std::scoped_lock lock(mutex_);
    return cause_.has_value();
  }
  Failure cause() const {
    CHECK(testing::soon([this] { return ended(); }));
    const std::scoped_lock lock(mutex_);
    return *cause_;
  }

 private:
  void keep(const Failure& cause) {
    const std::scoped_lock lock(mutex_);
    if (!cause_) cause_ = cause;
  }

  mutable std::mutex mutex_;
  std::optional<Failure> cause_;
  Heartbeat& heartbeat_;
  const Heartbeat::SeatPointer seat_;
};

struct Job {
  explicit Job(int size, ferrule::Clock::duration limit = kPatient) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<Heartbeat>(Heartbeat::Settings{rank, size, kEpoch, kInterval, limit}));
    }
  }
  Heartbeat& operator[](int rank) { return *ranks[static_cast<std::size_t>(rank)]; }
  void connect(int a, int b, std::size_t rail = 0) {
    const auto [one, other] = testing::socket_pair();
    (*this)[a].add(b, rail, one, "wire", -1);
    (*this)[b].add(a, rail, other, "wire", -1);
  }
  // `a` has a connection to `b`, whose part the test plays.
  int play(int a, int b, std::size_t rail = 0) {
    const auto [one, other] = testing::socket_pair();
    (*this)[a].add(b, rail, one, "wire", -1);
    return other;
  }
  bool soon(int rank, int peer, Presence presence) {
    return testing::soon([&] { return (*this)[rank].health(peer).presence == presence; });
  }

  std::vector<std::unique_ptr<Heartbeat>> ranks;
};

void send(int fd, const HeartbeatMessage& message) {
  std::vector<std::byte> bytes;
  append(bytes, message);
  CHECK(::send(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

// Reads until a frame of that kind comes.
HeartbeatMessage expect(int fd, HeartbeatReader& reader, HeartbeatKind kind) {
  for (;;) {
    std::byte byte;
    CHECK(::recv(fd, &byte, 1, 0) == 1);
    std::span<const std::byte> bytes(&byte, 1);
    HeartbeatMessage message;
    if (reader.read(bytes, message) && message.kind == kind) return message;
    CHECK(!reader.broken());
  }
}

void frames_survive_any_cut() {
  std::vector<std::byte> stream;
  const std::vector<HeartbeatMessage> sent = {
      {HeartbeatKind::beat, Status::ok, -1, kEpoch, 1, ""},
      {HeartbeatKind::verdict, Status::timeout, 3, kGroup, 2, std::string(300, 'x')},
      {HeartbeatKind::lost, Status::ok, 2, kEpoch, 3, "died"}};
  for (const HeartbeatMessage& message : sent) append(stream, message);
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    HeartbeatReader reader;
    std::vector<HeartbeatMessage> got;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      auto bytes = std::span<const std::byte>(stream).subspan(at, std::min(piece, stream.size() - at));
      HeartbeatMessage message;
      while (reader.read(bytes, message)) got.push_back(message);
    }
    CHECK(got.size() == 3 && got[0] == sent[0] && got[2] == sent[2]);
    CHECK(got[1].text == std::string(ferrule::kHeartbeatTextBytes, 'x') && got[1].status == Status::timeout);
  }
  stream[33] ^= std::byte{0xff};
  HeartbeatReader reader;
  std::span<const std::byte> bytes(stream);
  HeartbeatMessage message;
  CHECK(reader.read(bytes, message) && !reader.read(bytes, message) && reader.broken() && !reader.read(bytes, message));
}

void everybody_is_there_and_says_goodbye() {
  Job job(3);
  CHECK(job[0].health(1).presence == Presence::absent);
  job.connect(0, 1);
  job.connect(1, 2);
  job.connect(0, 2);
  Listener zero(job[0], {0, 1, 2});
  // Beats keep coming: silence starts anew.
  const auto later = ferrule::Clock::now() + 5 * kInterval;
  CHECK(testing::soon([&] { return ferrule::Clock::now() > later && job[0].health(1).silence < 4 * kInterval; }));
  job[2].close();
  CHECK(job.soon(0, 2, Presence::left) && job.soon(1, 2, Presence::left));
  { Listener one(job[1], {1, 0}, 99); }
  CHECK(job.soon(0, 1, Presence::left));  // its last group was closed
  CHECK(!zero.ended());
}

void a_silent_rank_is_lost_to_all() {
  Job job(3, 400ms);
  job.connect(0, 2);
  const int to_zero = job.play(0, 1);
  const int to_two = job.play(2, 1);
  Listener zero(job[0], {2, 0, 1});  // a group has its own numbers
  Listener two(job[2], {2, 0, 1});
  Listener without(job[2], {0, 2}, 99);
  for (std::uint64_t beat = 1; beat < 5; ++beat) {
    for (const int fd : {to_zero, to_two}) send(fd, {HeartbeatKind::beat, Status::ok, -1, kEpoch, beat, ""});
  }
  for (Listener* group : {&zero, &two}) {
    const Failure cause = group->cause();
    CHECK(cause.status == Status::peer_lost && cause.rank == 2);
    CHECK(contains(cause.message, "rank 2 does not answer: no heartbeat for 0.") &&
          contains(cause.message, "s on wire"));
  }
  CHECK(!without.ended() && job[2].health(1).presence == Presence::lost);
  // Whoever comes back is told, whatever it may say now.
  HeartbeatReader reader;
  const HeartbeatMessage told = expect(to_zero, reader, HeartbeatKind::lost);
  CHECK(told.rank == 1 && contains(told.text, "no heartbeat"));
  send(to_zero, {HeartbeatKind::lost, Status::ok, 2, kEpoch, 9, "did not answer me"});
  Listener late(job[0], {0, 1}, 100);  // a group that begins with somebody lost
  CHECK(late.cause().rank == 1);
  CHECK(job[0].health(2).presence == Presence::alive);
  ::close(to_zero);
  ::close(to_two);
}

void a_dead_rank_is_noticed_at_once() {
  Job job(2);
  std::vector<int> rails = {job.play(0, 1, 0), job.play(0, 1, 1)};
  Listener group(job[0], {0, 1});
  ::close(rails[0]);
  CHECK(testing::soon([&] { return job[0].health(1).rails == std::vector<bool>{false, true}; }));
  rails[0] = job.play(0, 1, 0);
  CHECK((job[0].health(1).rails == std::vector<bool>{true, true}) && !group.ended());
  for (const int fd : rails) ::close(fd);
  CHECK(group.cause().status == Status::peer_lost && contains(group.cause().message, "rank 1 died: "));
}

void the_first_cause_reaches_all() {
  Job job(3);
  job.connect(0, 1);
  job.connect(1, 2);  // 0 and 2 share no connection
  Listener zero(job[0], {0, 1, 2});
  Listener one(job[1], {0, 1, 2});
  zero.end(Failure(Status::timeout, 1, "barrier() #3 was not done after 1 s"));
  CHECK(one.cause().status == Status::aborted && one.cause().rank == 0);
  CHECK(one.cause().message == "rank 0 gave up: barrier() #3 was not done after 1 s");
  one.end(one.cause());             // as a group does
  Listener two(job[2], {0, 1, 2});  // the verdict was there before the group
  CHECK(two.cause().message == one.cause().message && two.cause().rank == 0);
}

void whoever_is_given_up_ends_its_groups() {
  Job job(3);
  job.connect(0, 1);
  const int two = job.play(0, 2);
  Listener group(job[0], {1, 2, 0});
  send(two, {HeartbeatKind::lost, Status::ok, 0, kEpoch, 1, "does not answer: no heartbeat for 0.80 s on wire"});
  CHECK(group.cause().status == Status::aborted && group.cause().rank == 2);
  CHECK(contains(group.cause().message, "the other ranks gave this one up: rank 2 does not answer"));
  ::close(two);
}

void nonsense_cuts_its_sender_off() {
  Job job(2);
  const int one = job.play(0, 1);
  Listener group(job[0], {0, 1});
  const char nonsense[] = "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
  CHECK(::send(one, nonsense, sizeof nonsense, 0) == sizeof nonsense);
  CHECK(contains(group.cause().message, "rank 1 was cut off: Protocol error"));
  ::close(one);
}

void all_name_the_same_when_two_do_not_hear_each_other() {
  Job job(3, 2s);
  job.connect(0, 2);
  job.connect(1, 2);
  const int held[] = {job.play(0, 1), job.play(1, 0)};
  std::vector<std::unique_ptr<Listener>> groups;
  for (int rank = 0; rank < 3; ++rank) groups.push_back(std::make_unique<Listener>(job[rank], std::vector{0, 1, 2}));
  const int lost = groups[2]->cause().rank;
  CHECK(lost == 0 || lost == 1);
  for (int rank = 0; rank < 3; ++rank) {
    const Failure cause = groups[static_cast<std::size_t>(rank)]->cause();
    CHECK(cause.rank == lost && cause.status == (rank == lost ? Status::aborted : Status::peer_lost));
  }
  groups.clear();
  for (const int fd : held) ::close(fd);
}

void an_arbiter_decides_for_others() {
  Job job(3);
  const int zero = job.play(1, 0);
  const int two = job.play(1, 2);
  Listener group(job[1], {0, 1, 2});
  send(zero, {HeartbeatKind::accuse, Status::ok, 2, kEpoch, 1, "does not answer"});
  HeartbeatReader from_one;
  CHECK(expect(zero, from_one, HeartbeatKind::lost).rank == 2);
  CHECK(group.cause().rank == 2);
  // It was the other way round for rank 2, but that is decided now.
  send(two, {HeartbeatKind::accuse, Status::ok, 0, kEpoch, 1, "does not answer"});
  send(zero, {HeartbeatKind::goodbye, Status::ok, -1, kEpoch, 2, ""});
  CHECK(job.soon(1, 0, Presence::left));
  ::close(zero);
  ::close(two);
}

#ifdef __linux__
// Lost beats are sent again soon: with pauses that double, a cut of 0.8 s would be silence for at least 1.4 s.
void a_wire_may_be_cut_for_a_moment() {
  rails_test::Wire wire;
  Heartbeat one({0, 2, kEpoch, 175ms, 1400ms});
  Heartbeat other({1, 2, kEpoch, 175ms, 1400ms});
  one.add(1, 0, wire.ends[0], "wire", -1);
  other.add(0, 0, wire.ends[1], "wire", -1);
  const Listener group(one, {0, 1});
  const Listener others_group(other, {0, 1});
  wire.cut();
  std::this_thread::sleep_for(800ms);
  wire.restore();
  CHECK(testing::soon([&] { return one.health(1).silence < 400ms && other.health(0).silence < 400ms; }));
  CHECK(!group.ended() && !others_group.ended());
}
#endif

}  // namespace

int main() {
  frames_survive_any_cut();
  everybody_is_there_and_says_goodbye();
  a_silent_rank_is_lost_to_all();
  a_dead_rank_is_noticed_at_once();
  the_first_cause_reaches_all();
  whoever_is_given_up_ends_its_groups();
  nonsense_cuts_its_sender_off();
  all_name_the_same_when_two_do_not_hear_each_other();
  an_arbiter_decides_for_others();
#ifdef __linux__
  a_wire_may_be_cut_for_a_moment();
#endif
  std::puts("ok");
  return 0;
}
