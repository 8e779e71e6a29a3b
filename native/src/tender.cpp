#include "tender.h"

#include "thread.h"

namespace ferrule {

Tender::Tender(std::function<bool()> tend, std::chrono::milliseconds interval)
    : tend_(std::move(tend)), interval_(interval), thread_(start_thread("ferrule-rails", [this] { run(); })) {}

Tender::~Tender() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Tender::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return stopping_; })) {
    lock.unlock();
    const bool more = tend_();
    lock.lock();
    if (!more) return;
  }
}

}  // namespace ferrule
