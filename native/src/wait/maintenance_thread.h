// Maintenance thread: calls a function at an interval until that returns false.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace ferrule {

class MaintenanceThread {
 public:
  // Calls `maintain` every `interval` until it returns false.
  MaintenanceThread(std::function<bool()> maintain, std::chrono::milliseconds interval);
  ~MaintenanceThread();
  MaintenanceThread(const MaintenanceThread&) = delete;
  MaintenanceThread& operator=(const MaintenanceThread&) = delete;

 private:
  void run();

  const std::function<bool()> maintain_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ferrule
