#include "wait/maintenance_thread.h"

#include "wait/thread.h"

namespace ferrule {

MaintenanceThread::MaintenanceThread(std::function<bool()> maintain, std::chrono::milliseconds interval)
    : maintain_(std::move(maintain)), interval_(interval), thread_(start_thread("ferrule-rails", [this] { run(); })) {}

MaintenanceThread::~MaintenanceThread() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MaintenanceThread::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return stopping_; })) {
    lock.unlock();
    const bool more = maintain_();
    lock.lock();
    if (!more) return;
  }
}

}  // namespace ferrule
