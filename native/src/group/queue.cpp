#include "group/queue.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "wait/thread.h"

namespace ferrule {
namespace {

constexpr std::chrono::milliseconds kLookUp{50};
constexpr double kForever = 1e9;  // seconds; more would overflow the clock

Clock::duration duration_of(double seconds) {
  const double finite = std::isnan(seconds) ? 0 : std::clamp(seconds, 0.0, kForever);
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(finite));
}

}  // namespace

Batch::Batch(const Operation* operations_, std::size_t count_, double timeout)
    : operations(operations_), count(count_), start(Clock::now()), deadline(start + duration_of(timeout)) {}

Job::Job(const Batch& batch, std::size_t ranks)
    : operations(batch.operations, batch.operations + batch.count), start(batch.start), deadline(batch.deadline) {
  counts.reserve(2 * ranks * batch.count);  // never grows afterwards: the operations point into it
  for (Operation& operation : operations) {
    for (const std::size_t** given : {&operation.send_counts, &operation.recv_counts}) {
      if (*given == nullptr) continue;
      counts.insert(counts.end(), *given, *given + ranks);
      *given = counts.data() + counts.size() - ranks;
    }
  }
}

Batch Job::batch() const {
  Batch batch(operations.data(), operations.size(), 0);
  batch.start = start;
  batch.deadline = deadline;
  return batch;
}

Status Work::wait(double timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, duration_of(timeout), [this] { return status_ != Status::pending; });
  return status_;
}

void Work::then(std::function<void()> done) {
  {
    const std::scoped_lock lock(mutex_);
    if (status_ == Status::pending) {
      then_.push_back(std::move(done));
      return;
    }
  }
  done();
}

void Work::finish(Status status) {
  std::vector<std::function<void()>> then;
  {
    const std::scoped_lock lock(mutex_);
    status_ = status;
    then.swap(then_);
  }
  changed_.notify_all();
  for (const auto& done : then) done();
}

Queue::Entry Queue::enter_as(Holder wanted) {
  for (;;) {
    Holder holder = Holder::none;
    if (holder_.compare_exchange_strong(holder, wanted, std::memory_order_acq_rel)) return Entry::entered;
    if (holder == Holder::operation) return Entry::occupied;
    if (holder == Holder::thread && pending()) return Entry::pending;
    std::this_thread::yield();  // the maintenance thread, or a thread that is done, leaves in a moment
  }
}

bool Queue::try_maintain() {
  Holder holder = Holder::none;
  return holder_.compare_exchange_strong(holder, Holder::maintenance, std::memory_order_acq_rel);
}

void Queue::leave() {
  holder_.store(Holder::none, std::memory_order_seq_cst);
  if (pending_.load(std::memory_order_seq_cst) == 0) return;
  const std::scoped_lock lock(mutex_);
  changed_.notify_all();
}

void Queue::push(Job job) {
  const std::scoped_lock lock(mutex_);
  // What can fail comes first: nothing is counted that no thread will run.
  if (!thread_.joinable()) thread_ = start_thread("ferrule-stream", [this] { run(); });
  jobs_.push_back(std::move(job));
  queued_.fetch_add(1, std::memory_order_acq_rel);
  pending_.fetch_add(1, std::memory_order_seq_cst);
  changed_.notify_all();
}

bool Queue::pop(Job& into) {
  const std::scoped_lock lock(mutex_);
  if (jobs_.empty()) return false;
  into = std::move(jobs_.front());
  jobs_.pop_front();
  queued_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void Queue::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!pending() || enter_as(Holder::thread) != Entry::entered) {
      // Looking up now and then covers a notification between the test and the wait.
      changed_.wait_for(lock, pending() ? kLookUp : 20 * kLookUp);
      continue;
    }
    lock.unlock();
    serve_();
    leave();
    lock.lock();
  }
}

void Queue::drain() {
  while (pending()) {
    std::unique_lock lock(mutex_);
    if (!thread_.joinable()) return;
    changed_.wait_for(lock, kLookUp, [this] { return !pending(); });
  }
}

void Queue::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace ferrule
