// Waiting: spin, then yield the core, then sleep in poll() on every peer's socket.
//
// Spinning is what makes small messages fast and what ruins everything when another process needs the core. So the
// time to spin shrinks while it does not pay, above all where the peer itself needs the core, and grows back when it
// does; yielding costs a fraction of a microsecond and lets others run; and only then the rank sleeps, which costs
// tens of microseconds to end. The time to yield shrinks, too, while sleeps turn out long.
#pragma once

#include <poll.h>
#include <sched.h>
#include <atomic>
#include <cstdint>
#include <vector>

#include "transports/channel.h"
#include "wait/wake_pipe.h"

namespace ferrule {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum class Progress { done, moved, idle };

// Haste of a wait. For a small message every microsecond counts. In the middle of a long one the next bytes are worth
// no more than the core's time: sleep soon, and find more of them at once.
enum class Haste { latency, bulk };

class Waiter {
 public:
  struct Settings {
    Clock::duration spin{};
    Clock::duration yield{};
    int (*interrupted)(void*) = nullptr;
    void* interrupted_context = nullptr;
  };

  // `channels[rank]` is nullptr for this rank. `sleeping` is this rank's flag in the segment, or nullptr.
  Waiter(const Settings& settings, const std::vector<Channel*>& channels, std::atomic<std::uint32_t>* sleeping);
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // An operation that began at `start` must end by `deadline`; `call` is named in the error when it does not.
  void begin(const Call& call, Clock::time_point start, Clock::time_point deadline);
  double seconds() const;
  // Both may be called from any thread. A sleeper takes another step, or gives up.
  void wake() { wake_.ring(); }
  void abort();
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

  // Call step() until it says done. wants(rank) tells what the step is waiting for when it has long been idle.
  template <class Step, class Wants>
  void until(Step&& step, Wants&& wants, Haste haste = Haste::latency) {
    Idle idle{*this, haste};
    for (;;) {
      const Progress progress = step();
      if (progress == Progress::done) return idle.finish();
      if (progress == Progress::moved) {
        idle.reset();
      } else if (idle.relax()) {
        for (std::size_t rank = 0; rank < channels_.size(); ++rank) {
          wanted_[rank] = channels_[rank] == nullptr ? Wanted{} : wants(static_cast<int>(rank));
        }
        if (sleep()) {
          idle.woke();
        } else {
          idle.doze();
        }
      }
    }
  }

 private:
  enum class Phase { spin, yield, sleep };

  struct Idle {
    Waiter& waiter;
    Haste haste;
    Phase phase = Phase::spin;
    bool waited = false;
    bool gave_way = false;  // another thread ran when the core was yielded,
    bool briefly = false;   // and yielded it back soon, as a peer does that waits for us in turn
    unsigned steps = 0;
    Clock::time_point since{};

    ~Idle();
    bool relax();  // true: the sleeping flag is up and one more step found nothing, so sleep now
    void reset();
    // Something came while it slept. Yielding for longer would have found it sooner, or was in vain: an idle model's
    // ranks hear from each other once per second, and yield for 20 ms before they sleep again.
    void woke();
    // Nothing came while it slept: look once more and sleep on, without spinning and yielding anew.
    void doze();
    void finish();
  };

  void raise_flag();
  void lower_flag();
  bool sleep();  // whether something happened
  void check_aborted() const;
  [[noreturn]] void time_out();

  const Settings settings_;
  const std::vector<Channel*> channels_;
  std::atomic<std::uint32_t>* const sleeping_;
  Clock::duration spin_;      // the adapted part of settings_.spin
  Clock::duration yield_;     // and of settings_.yield
  bool shares_core_ = false;  // with a peer, by the last wait
  std::atomic<bool> aborted_{false};
  Call call_;
  Clock::time_point start_{};
  Clock::time_point deadline_{};
  std::vector<Wanted> wanted_;
  WakePipe wake_;
  std::vector<pollfd> polled_;
  std::vector<Channel*> polled_channels_;
};

}  // namespace ferrule
