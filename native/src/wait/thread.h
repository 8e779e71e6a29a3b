// Threads of the data plane.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace ferrule {

// Start a thread that takes no signals: those are for the application's own threads, Python's main thread above all.
// Only what a thread does wrong itself still reaches it.
template <class Body>
std::thread start_thread(const char* name, Body&& body) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  for (const int own_fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, own_fault);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  };
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  const Restore restore{before};
  return std::thread([name, body = std::forward<Body>(body)]() mutable {
  // At most 15 characters; shown by debuggers and `top -H`.
#ifdef __APPLE__
    ::pthread_setname_np(name);
#else
    ::pthread_setname_np(::pthread_self(), name);
#endif
    body();
  });
}

}  // namespace ferrule
