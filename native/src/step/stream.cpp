#include "step/stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "assertions.h"
#include "wait/thread.h"

namespace ferrule {
namespace {

// Of one read: large enough for the full speed of a disk, and small enough that several threads share a part.
constexpr std::size_t kReadBytes = std::size_t{2} << 20;
// After so many entries for each part, uses of long ago count half.
constexpr std::uint64_t kMemory = 16;
// Parts of what is read to measure a disk.
constexpr std::size_t kRatePart = std::size_t{8} << 20;
constexpr double kRateSeconds = 60;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kDiskPage - 1) / kDiskPage * kDiskPage; }

}  // namespace

WeightFile::WeightFile(int descriptor, int threads) : descriptor_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "weights on disk");
  for (int i = 0; i < threads; ++i) readers_.push_back(start_thread("ferrule-weights", [this] { work(); }));
}

WeightFile::~WeightFile() {
  {
    const std::lock_guard lock(lock_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& each : readers_) each.join();
  ::close(descriptor_);
}

void WeightFile::work() {
  std::unique_lock lock(lock_);
  for (;;) {
    ready_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    const std::string failure = read(job);
    lock.lock();
    WeightPool::Slot& slot = job.pool->slots_[job.slot];
    --slot.reading;
    if (!failure.empty()) slot.failure = failure;
    job.pool->use_.bytes += job.bytes;
    done_.notify_all();
  }
}

std::string WeightFile::read(const Job& job) const {
  for (std::size_t at = 0; at < job.bytes;) {
    const ssize_t got = ::pread(descriptor_, job.to + at, job.bytes - at, static_cast<off_t>(job.offset + at));
    if (got > 0) {
      at += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return "the file ends at byte " + std::to_string(job.offset + at) + ", where weights should be";
    } else if (errno != EINTR) {
      return std::string(std::strerror(errno)) + " at byte " + std::to_string(job.offset + at);
    }
  }
  return {};
}

double read_rate(int descriptor, int threads, std::uint64_t offset, std::size_t bytes) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<Extent>> parts;
  for (std::size_t at = 0; at < bytes; at += kRatePart)
    parts.push_back({{offset + at, std::min(kRatePart, bytes - at)}});
  const std::size_t slots = std::min<std::size_t>(4, (parts.size() + 1) / 2), count = parts.size();
  WeightPool pool(std::make_shared<WeightFile>(descriptor, threads), std::move(parts), slots, true);
  Clock::time_point began = Clock::now();
  std::size_t counted = bytes;
  for (std::size_t i = 0; i < count; ++i) {
    pool.enter(i, kRateSeconds);
    pool.leave();
    if (count > slots && i + 1 == slots) {  // the memory is there by now
      began = Clock::now();
      counted = bytes - slots * kRatePart;
    }
  }
  return static_cast<double>(counted) / std::max(std::chrono::duration<double>(Clock::now() - began).count(), 1e-9);
}

WeightPool::WeightPool(std::shared_ptr<WeightFile> file, std::vector<std::vector<Extent>> parts, std::size_t slots,
                       bool cyclic)
    : file_(std::move(file)), cyclic_(cyclic), slots_(slots) {
  if (parts.empty() || slots == 0) throw std::invalid_argument("a pool has at least one part and one slot");
  for (std::vector<Extent>& extents : parts) {
    std::size_t bytes = 0;
    for (const Extent& each : extents) {
      if (each.bytes == 0 || each.offset % kDiskPage != 0) throw std::invalid_argument("extents begin at whole pages");
      bytes += whole_pages(each.bytes);
    }
    if (bytes == 0) throw std::invalid_argument("a part has at least one extent");
    slot_bytes_ = std::max(slot_bytes_, bytes);
    parts_.emplace_back().extents = std::move(extents);
  }
  memory_ = PageMemory(slots * slot_bytes_);
  if (!cyclic) return;
  const std::lock_guard lock(file_->lock_);
  turn_to(0);
  look_ahead();
}

WeightPool::~WeightPool() {
  std::unique_lock lock(file_->lock_);
  for (const WeightFile::Job& job : file_->jobs_) {
    if (job.pool == this) --slots_[job.slot].reading;
  }
  std::erase_if(file_->jobs_, [this](const WeightFile::Job& job) { return job.pool == this; });
  file_->done_.wait(lock,
                    [this] { return std::ranges::all_of(slots_, [](const Slot& each) { return !each.reading; }); });
}

void WeightPool::bind(std::size_t part, std::size_t index, PackedMatrix& matrix) {
  const std::vector<Extent>& extents = parts_.at(part).extents;
  if (index >= extents.size() || extents[index].bytes != matrix.layout.bytes()) {
    throw std::invalid_argument("a part has no such matrix");
  }
  std::size_t offset = 0;
  for (std::size_t i = 0; i < index; ++i) offset += whole_pages(extents[i].bytes);
  parts_[part].places.push_back({&matrix, offset});
}

void WeightPool::expect(std::span<const std::size_t> parts) {
  const std::lock_guard lock(file_->lock_);
  ahead_.assign(parts.begin(), parts.end());
  for (const std::size_t each : parts) ++(parts_[each].slot == kNone ? use_.misses : use_.hits);
  look_ahead();
}

void WeightPool::enter(std::size_t part, double timeout_seconds) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(file_->lock_);
  entered_ = kNone;
  if (ahead_.empty() || ahead_.front() != part) turn_to(part);
  look_ahead();
  Part& found = parts_.at(part);
  const auto here = [&] { return found.slot != kNone && slots_[found.slot].reading == 0; };
  if (!here()) {
    const Clock::time_point began = Clock::now();
    const Clock::time_point until =
        began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
    while (!here()) {
      if (file_->done_.wait_until(lock, until) == std::cv_status::timeout && !here()) {
        throw WeightsLost("they have not come within " + std::to_string(static_cast<long>(timeout_seconds)) + " s");
      }
      look_ahead();  // a slot may be free now
    }
    use_.waited += std::chrono::duration<double>(Clock::now() - began).count();
  }
  Slot& slot = slots_[found.slot];
  if (!slot.failure.empty()) {
    const std::string failure = std::exchange(slot.failure, {});
    slot.part = found.slot = kNone;
    throw WeightsLost(failure);
  }
  ahead_.pop_front();
  if (cyclic_) ahead_.push_back(part);
  entered_ = part;
  found.entered = ++entries_;
  ++found.uses;
  if (entries_ % (kMemory * parts_.size()) == 0) {
    for (Part& each : parts_) each.uses /= 2;
  }
  for (const Place& each : found.places) each.matrix->data = memory_of(found.slot) + each.offset;
}

void WeightPool::leave() {
  const std::lock_guard lock(file_->lock_);
  entered_ = kNone;
  look_ahead();
}

StreamUse WeightPool::use() const {
  const std::lock_guard lock(file_->lock_);
  return use_;
}

// Have `part` be next: a step that ended early is followed by one that begins at the beginning.
void WeightPool::turn_to(std::size_t part) {
  ahead_.clear();
  const std::size_t count = cyclic_ ? parts_.size() : 1;
  for (std::size_t i = 0; i < count; ++i) ahead_.push_back((part + i) % parts_.size());
}

// Begin to read what is needed next, as far as there are slots for it.
void WeightPool::look_ahead() {
  ++round_;
  const std::size_t count = std::min(ahead_.size(), slots_.size());
  for (std::size_t i = 0; i < count; ++i) parts_[ahead_[i]].wanted = round_;
  for (std::size_t i = 0; i < count; ++i) {
    if (parts_[ahead_[i]].slot != kNone) continue;
    const std::size_t slot = victim();
    if (slot == kNone) return;
    begin(ahead_[i], slot);
  }
}

// The slot to be filled anew: one that is free, else of what is not needed next that which was used least.
std::size_t WeightPool::victim() const {
  std::size_t best = kNone;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.reading != 0) continue;
    if (slot.part == kNone) return i;
    const Part& part = parts_[slot.part];
    if (slot.part == entered_ || part.wanted == round_) continue;
    if (best != kNone) {
      const Part& other = parts_[slots_[best].part];
      if (std::pair(part.uses, part.entered) >= std::pair(other.uses, other.entered)) continue;
    }
    best = i;
  }
  return best;
}

void WeightPool::begin(std::size_t part, std::size_t slot) {
  Slot& given = slots_[slot];
  FERRULE_ASSERT(given.reading == 0);
  if (given.part != kNone) parts_[given.part].slot = kNone;
  given.part = part;
  given.failure.clear();
  parts_[part].slot = slot;
  std::uint8_t* to = memory_of(slot);
  for (const Extent& each : parts_[part].extents) {
    const std::size_t bytes = whole_pages(each.bytes);
    for (std::size_t at = 0; at < bytes; at += kReadBytes) {
      file_->jobs_.push_back({this, slot, to + at, each.offset + at, std::min(kReadBytes, bytes - at)});
      ++given.reading;
    }
    to += bytes;
  }
  file_->ready_.notify_all();
}

}  // namespace ferrule
