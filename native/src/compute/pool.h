// Threads that compute together: each call of run() is a piece of work for all of them, and ends when all are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace ferrule {

class Pool {
 public:
  // `threads` in all, the caller of run() included.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Call body(thread) on every thread, 0 being the caller's.
  template <class Body>
  void run(Body&& body) {
    if (workers_.empty()) {
      body(0);
      return;
    }
    start([](void* context, int thread) { (*static_cast<Body*>(context))(thread); }, &body);
    body(0);
    finish();
  }
  // Share out `count` pieces of equal work in order: body(first, last) on every thread that gets any.
  template <class Body>
  void share(std::size_t count, Body&& body) {
    const std::size_t threads = static_cast<std::size_t>(this->threads());
    run([&](int thread) {
      const std::size_t first = count * static_cast<std::size_t>(thread) / threads;
      const std::size_t last = count * (static_cast<std::size_t>(thread) + 1) / threads;
      if (first < last) body(first, last);
    });
  }

 private:
  using Function = void (*)(void* context, int thread);

  void start(Function function, void* context);
  void finish();
  void keep_off_workers();
  void work(int thread);

  Function function_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> round_{0};  // changes when there is work; the threads wait for that
  alignas(64) std::atomic<std::uint32_t> left_{0};   // threads that are not done
  std::atomic<bool> stopping_{false};
  std::vector<int> cores_;  // of every thread, the caller's first; empty where none is tied to one
  std::vector<std::thread> workers_;
};

}  // namespace ferrule
