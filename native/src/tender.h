// A thread that looks after something now and then, for as long as there is something to look after.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace ferrule {

class Tender {
 public:
  // Calls `tend` every `interval` until it returns false.
  Tender(std::function<bool()> tend, std::chrono::milliseconds interval);
  ~Tender();
  Tender(const Tender&) = delete;
  Tender& operator=(const Tender&) = delete;

 private:
  void run();

  const std::function<bool()> tend_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ferrule
