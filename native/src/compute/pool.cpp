#include "compute/pool.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <span>

#include "wait/thread.h"
#include "wait/wait.h"

namespace ferrule {
namespace {

// Time that a thread stays awake for the next piece of work: longer than the gap between two of one step.
constexpr std::chrono::microseconds kAwake{200};
constexpr int kLooks = 64;  // between two looks at the clock

// Spin first, then sleep, until `value` is no longer `old`.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  const auto end = std::chrono::steady_clock::now() + kAwake;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

// One core each, where the caller may run on as many as there are threads.
std::vector<int> cores_for(int threads) {
  std::vector<int> cores;
#ifdef __linux__
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) != threads) return {};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
#else
  (void)threads;
#endif
  return cores;
}

// The calling thread, to some cores.
void pin_to(std::span<const int> cores) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  (void)::sched_setaffinity(0, sizeof set, &set);
#else
  (void)cores;
#endif
}

}  // namespace

Pool::Pool(int threads) : cores_(cores_for(threads)) {
  workers_.reserve(static_cast<std::size_t>(threads > 1 ? threads - 1 : 0));
  for (int thread = 1; thread < threads; ++thread) {
    workers_.push_back(start_thread("ferrule-compute", [this, thread] {
      if (!cores_.empty()) pin_to(std::span(cores_).subspan(static_cast<std::size_t>(thread), 1));
      work(thread);
    }));
  }
}

Pool::~Pool() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::start(Function function, void* context) {
  keep_off_workers();
  function_ = function;
  context_ = context;
  left_.store(static_cast<std::uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

void Pool::finish() {
  for (;;) {
    const std::uint32_t left = left_.load(std::memory_order_acquire);
    if (left == 0) return;
    wait_for_change(left_, left);
  }
}

// The caller is tied to no core, since threads that it starts would be, too. Where the kernel has put it on a worker's,
// each would spin while the other has something to do, until the kernel moves it after a second or so.
void Pool::keep_off_workers() {
#ifdef __linux__
  if (cores_.empty()) return;
  const auto workers = std::span(cores_).subspan(1);
  if (std::ranges::find(workers, ::sched_getcpu()) == workers.end()) return;
  pin_to(std::span(cores_).first(1));
  pin_to(cores_);
#endif
}

void Pool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    wait_for_change(round_, seen);
    ++seen;  // rounds come one at a time: the next one starts when this thread is done
    if (stopping_.load(std::memory_order_relaxed)) return;
    function_(context_, thread);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_all();
  }
}

}  // namespace ferrule
