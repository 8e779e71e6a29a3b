// Threads that compute together: all take part, and the caller leaves the core of another one.
#include "compute/pool.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <vector>

#include "testing.h"

namespace {

constexpr int kSkip = 77;

void allow(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  CHECK(::sched_setaffinity(0, sizeof set, &set) == 0);
}

std::vector<int> allowed() {
  cpu_set_t set;
  CHECK(::sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void every_thread_has_its_turn_and_its_share() {
  ferrule::Pool pool(3);
  std::array<std::atomic<int>, 3> turns{};
  std::vector<int> done(7);
  for (int round = 0; round < 100; ++round) {
    pool.run([&](int thread) { turns[static_cast<std::size_t>(thread)].fetch_add(1); });
    pool.share(done.size(), [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) ++done[i];
    });
  }
  for (const auto& each : turns) CHECK(each.load() == 100);
  for (const int each : done) CHECK(each == 100);
}

void caller_leaves_the_core_of_a_worker(const std::vector<int>& cores) {
  allow(cores);
  ferrule::Pool pool(2);
  std::atomic<int> worker{-1};
  const auto look = [&](int thread) {
    if (thread == 1) worker.store(::sched_getcpu());
  };
  CHECK(testing::soon([&] {
    pool.run([&](int thread) { look(thread); });
    return worker.load() == cores[1];
  }));
  for (int time = 0; time < 20; ++time) {
    allow({cores[1]});
    allow(cores);
    pool.run([&](int thread) { look(thread); });
    CHECK(worker.load() == cores[1]);
    int caller = -1;
    // The kernel may put it back at any time, but not each time.
    CHECK(testing::soon([&] {
      pool.run([&](int thread) {
        if (thread == 0) caller = ::sched_getcpu();
      });
      return caller == cores[0];
    }));
    CHECK(allowed() == cores);  // it is tied to no core
  }
}

}  // namespace

int main() {
  every_thread_has_its_turn_and_its_share();
  const std::vector<int> cores = allowed();
  if (cores.size() < 2) return kSkip;
  caller_leaves_the_core_of_a_worker({cores[0], cores[1]});
}
