// Who is there and who is lost, by times alone.
#include "liveness/failure_detector.h"

#include "testing.h"

#include <cerrno>

namespace {

using ferrule::FailureDetector;
using ferrule::Presence;
using namespace std::chrono_literals;

constexpr auto kInterval = 150ms;
constexpr auto kLimit = 800ms;
const FailureDetector::Time kStart{1h};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

FailureDetector all_connected(int rank, int size) {
  FailureDetector all(rank, size, kInterval, kLimit);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) all.connect(peer, 0, "wire" + std::to_string(peer), -1, kStart);
  }
  return all;
}

void silence() {
  FailureDetector all = all_connected(0, 2);
  CHECK(all.presence(0) == Presence::self && all.presence(1) == Presence::alive);
  all.hear(1, 0, 1, kStart + 100ms);
  CHECK(all.next_look() == kStart + 900ms);
  CHECK(!all.suspect(kStart + 899ms));
  const auto suspect = all.suspect(kStart + 900ms);
  CHECK(suspect && suspect->peer == 1 && suspect->arbiter == -1);
  CHECK(suspect->reason == "does not answer: no heartbeat for 0.80 s on wire1");
  all.lose(1, suspect->reason);
  CHECK(!all.suspect(kStart + 2s) && all.next_look() == FailureDetector::Time::max());
}

void any_rail_will_do() {
  FailureDetector all = all_connected(0, 2);
  all.connect(1, 2, "second", -1, kStart);
  all.hear(1, 2, 1, kStart + 700ms);
  CHECK(!all.suspect(kStart + 1400ms));
  CHECK((all.rails(1, kStart + 1400ms) == std::vector<bool>{false, false, true}));
  all.end(1, 2, ECONNRESET, kStart + 1400ms);
  // The other one still is, if only just.
  const auto suspect = all.suspect(kStart + 1401ms);
  CHECK(suspect && contains(suspect->reason, "no heartbeat for 1.40 s on wire1"));
}

void an_end_counts_at_once() {
  for (const auto& [error, reason] :
       {std::pair{0, "died: its connection ended on wire1"}, std::pair{ECONNRESET, "died: connection reset on wire1"},
        std::pair{EHOSTUNREACH, "was cut off: No route to host on wire1"}}) {
    FailureDetector all = all_connected(0, 3);
    all.end(1, 0, error, kStart + 10ms);
    const auto suspect = all.suspect(kStart + 10ms);
    CHECK(suspect && suspect->peer == 1 && suspect->arbiter == -1 && suspect->reason == reason);
  }
}

void own_lateness_excuses() {
  FailureDetector all = all_connected(0, 2);
  all.hear(1, 0, 1, kStart + 100ms);
  all.excuse(10s, kStart + 11s);
  CHECK(all.silence(1, kStart + 11s) == 900ms);
  CHECK(all.suspect(kStart + 11s));
  all.excuse(300ms, kStart + 11s);
  CHECK(!all.suspect(kStart + 11s));
}

void goodbyes() {
  FailureDetector all = all_connected(0, 2);
  all.connect(1, 1, "second", -1, kStart);
  all.say_goodbye(1, 7);
  all.hear(1, 1, 6, kStart + 10ms);  // older, but slower
  CHECK(all.presence(1) == Presence::left && !all.suspect(kStart + 10s));
  all.hear(1, 1, 8, kStart + 20ms);
  CHECK(all.presence(1) == Presence::alive);
  all.say_goodbye(1, 9);
  all.end(1, 0, 0, kStart + 1s);
  all.end(1, 1, ECONNRESET, kStart + 1s);
  CHECK(all.presence(1) == Presence::left && !all.suspect(kStart + 10s));
}

void the_one_between_is_suspected_first() {
  FailureDetector all(0, 3, kInterval, kLimit);
  all.connect(1, 0, "wire1", 2, kStart);
  all.connect(2, 0, "wire2", -1, kStart);
  // Rank 2 stops: what it forwarded last is older than what it said itself.
  all.hear(1, 0, 1, kStart + 50ms);
  all.hear(2, 0, 1, kStart + 150ms);
  CHECK(!all.suspect(kStart + 949ms));
  const auto silent = all.suspect(kStart + 950ms);
  CHECK(silent && silent->peer == 2);
  // It dies: both connections end at the same moment.
  all.end(1, 0, 0, kStart + 950ms);
  all.end(2, 0, 0, kStart + 950ms);
  const auto dead = all.suspect(kStart + 950ms);
  CHECK(dead && dead->peer == 2);
  all.lose(2, dead->reason);
  CHECK(!all.suspect(kStart + 949ms + kLimit));
  const auto behind = all.suspect(kStart + 950ms + kLimit);
  CHECK(behind && behind->peer == 1 && contains(behind->reason, "is cut off: rank 2 of the job, which was between"));
}

void somebody_else_decides() {
  // The cable between 0 and 1 is cut; both hear rank 2 and 3.
  FailureDetector zero = all_connected(0, 4);
  FailureDetector one = all_connected(1, 4);
  for (FailureDetector* all : {&zero, &one}) {
    for (const int peer : {2, 3}) all->hear(peer, 0, 1, kStart + 700ms);
  }
  const auto accused = zero.suspect(kStart + kLimit);
  CHECK(accused && accused->peer == 1 && accused->arbiter == 2);
  CHECK(one.suspect(kStart + kLimit)->peer == 0 && one.suspect(kStart + kLimit)->arbiter == 2);
  zero.ask(1, kStart + kLimit);
  CHECK(!zero.suspect(kStart + kLimit + 10ms));
  CHECK(zero.next_look() == kStart + kLimit + 100ms);
  CHECK(zero.suspect(kStart + kLimit + 100ms)->arbiter == -1);
  zero.hear(1, 0, 2, kStart + kLimit + 50ms);
  CHECK(!zero.suspect(kStart + kLimit + 100ms));
}

void alone() {
  FailureDetector all = all_connected(0, 3);
  const auto suspect = all.suspect(kStart + kLimit);
  CHECK(suspect && suspect->peer == 1 && suspect->arbiter == -1);
  CHECK(contains(suspect->reason, "nor does any other rank: this one may be cut off"));
}

void without_a_limit_only_ends_count() {
  FailureDetector all(0, 2, kInterval, 0ms);
  CHECK(all.presence(1) == Presence::absent && all.silence(1, kStart) == ferrule::Clock::duration::max());
  all.connect(1, 0, "wire", -1, kStart);
  CHECK(!all.suspect(kStart + 1h) && (all.rails(1, kStart + 1h) == std::vector<bool>{true}));
  all.end(1, 0, 0, kStart + 1h);
  CHECK(all.suspect(kStart + 1h));
}

}  // namespace

int main() {
  silence();
  any_rail_will_do();
  an_end_counts_at_once();
  own_lateness_excuses();
  goodbyes();
  the_one_between_is_suspected_first();
  somebody_else_decides();
  alone();
  without_a_limit_only_ends_count();
  std::puts("ok");
  return 0;
}
