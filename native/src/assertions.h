// Assertions of invariants: what our own code must keep true, whatever peers, users or the system do.
//
// A broken invariant ends the process, with the place and the condition, before it can spoil a result. What comes from
// outside is checked and raised as an error instead.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ferrule {

[[noreturn, gnu::cold, gnu::noinline]] inline void assertion_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: this must be true and is not: %s\n", file, line, condition);
  std::abort();
}

}  // namespace ferrule

// In every build: for conditions that cost a comparison or two.
#define FERRULE_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::ferrule::assertion_failed(__FILE__, __LINE__, #condition))

// Only in tests, debug builds and under sanitizers (FERRULE_ASSERTIONS): for conditions that walk over data.
#ifdef FERRULE_ASSERTIONS
#define FERRULE_ASSERT_COSTLY(condition) FERRULE_ASSERT(condition)
#else
#define FERRULE_ASSERT_COSTLY(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#endif
