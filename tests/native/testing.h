// What the native tests share: checks that name their place, waits with a deadline, and connected sockets.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

namespace testing {

inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::abort();
}

// Ends the test.
#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) testing::fail(__FILE__, __LINE__, #condition); \
  } while (false)

// Looks again and again; a busy machine may take its time.
template <class Condition>
bool soon(Condition&& condition, double seconds = 20) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

inline std::pair<int, int> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail(__FILE__, __LINE__, "socketpair");
  return {ends[0], ends[1]};
}

}  // namespace testing
