// Pacer: a shaper's wait for its next moment. It sleeps for most of the time, and polls for the rest, because a sleep
// ends late. Pure: it decides, others sleep.
#pragma once

#include <algorithm>

#include "emulation/shaper/packet.h"

namespace ferrule::shaper {

class Pacer {
 public:
  // Time to sleep now: `kNever` until something arrives, 0 not at all, for polling. `last`: when something moved
  // last. `spare`: no thread of this machine waits for a processor.
  Time sleep(Time now, Time next, Time last, bool spare) {
    grant(now);
    if (next <= now) return 0;
    const Time left = next == kNever ? kNever : next - now;
    // An answer may follow soon, and waking up would cost more than all that a short cable does.
    if (spare && now - last < kLinger) return 0;
    if (left > margin_) return left == kNever ? kNever : left - margin_;
    // A thread that has polled for its share of the time sleeps, and may be late: the hosts need the processor.
    return spare || budget_ > 0 ? 0 : std::max(left, kShortest);
  }
  // A sleep of `asked` has ended by itself after `taken`.
  void slept(Time asked, Time taken) {
    margin_ = std::clamp(std::max((taken - asked) * 5 / 4, margin_ - margin_ / 64), kLeastMargin, kMostMargin);
  }
  // So much time went by in polling.
  void polled(Time taken) { budget_ = std::max(budget_ - taken, Time{0}); }

  Time margin() const { return margin_; }

 private:
  void grant(Time now) {
    if (granted_ != 0) budget_ = std::min(budget_ + (now - granted_) * kSharePercent / 100, kMostBudget);
    granted_ = now;
  }

  static constexpr Time kLeastMargin = 5'000;
  static constexpr Time kMostMargin = 100'000;
  static constexpr Time kShortest = 5'000;
  static constexpr Time kLinger = 200'000;
  static constexpr Time kSharePercent = 30;
  static constexpr Time kMostBudget = 500'000;

  Time margin_ = 50'000;
  Time budget_ = kMostBudget;
  Time granted_ = 0;
};

}  // namespace ferrule::shaper
