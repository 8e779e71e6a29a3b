// Packed weights that stay on disk: parts of a file, read by threads into a few buffers ahead of the step that needs
// them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "compute/memory.h"
#include "kernels/product.h"

namespace ferrule {

// Thrown where weights cannot be read. What it says is for people.
struct WeightsLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What reads past the page cache takes whole: in the file, of memory, and of bytes.
constexpr std::size_t kDiskPage = 4096;

struct Extent {
  std::uint64_t offset = 0;  // in the file
  std::size_t bytes = 0;     // of the matrix; as many whole pages are read
};

struct StreamUse {
  std::uint64_t hits = 0, misses = 0;  // of parts that were announced: in memory by then, or not
  std::uint64_t bytes = 0;             // read
  double waited = 0;                   // seconds
};

// Bytes per second by which `threads` read `bytes` of a file from `offset` on, as a pool's parts are. Throws
// WeightsLost and std::system_error.
double read_rate(int descriptor, int threads, std::uint64_t offset, std::size_t bytes);

class WeightPool;

// A file, and the threads that read it for its pools.
class WeightFile {
 public:
  // Duplicates `descriptor`. Throws std::system_error.
  WeightFile(int descriptor, int threads);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

 private:
  friend class WeightPool;
  struct Job {
    WeightPool* pool;
    std::size_t slot;
    std::uint8_t* to;
    std::uint64_t offset;
    std::size_t bytes;
  };

  void work();
  std::string read(const Job& job) const;  // what went wrong, or nothing

  int descriptor_ = -1;
  std::mutex lock_;  // of this and its pools
  std::condition_variable ready_, done_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> readers_;
};

// Parts of a file, of which as many are in memory as there are slots: those that are needed next, in the order in which
// they are, and else those that were used most. One thread uses it. Matrices of a part that is not entered must not be
// read.
//
// A cyclic pool is entered from the first part to the last, and again: its order need not be announced. What is kept of
// such an order does not matter as long as it is read in time, so parts that fit in memory are better not in the pool.
class WeightPool {
 public:
  // `parts`: the extents of each, one matrix after the other.
  WeightPool(std::shared_ptr<WeightFile> file, std::vector<std::vector<Extent>> parts, std::size_t slots, bool cyclic);
  ~WeightPool();
  WeightPool(const WeightPool&) = delete;
  WeightPool& operator=(const WeightPool&) = delete;

  std::size_t size() const { return parts_.size(); }
  std::size_t bytes() const { return memory_.bytes(); }
  // The data of `matrix`, which stays where it is, are those of extent `index` of a part whenever that is entered.
  void bind(std::size_t part, std::size_t index, PackedMatrix& matrix);
  // These are entered next, in this order.
  void expect(std::span<const std::size_t> parts);
  // Have a part in memory until another is entered or this one left. Throws WeightsLost.
  void enter(std::size_t part, double timeout_seconds);
  void leave();
  StreamUse use() const;

 private:
  friend class WeightFile;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Slot {
    std::size_t part = kNone;
    std::size_t reading = 0;  // jobs that are not done
    std::string failure;
  };
  struct Place {
    PackedMatrix* matrix;
    std::size_t offset;  // in the slot
  };
  struct Part {
    std::vector<Extent> extents;
    std::vector<Place> places;
    std::size_t slot = kNone;
    std::uint64_t wanted = 0;  // the last round in which it was among those that are needed next
    std::uint64_t entered = 0;
    std::uint32_t uses = 0;  // in the long run; halved now and then
  };

  void look_ahead();
  std::size_t victim() const;
  void begin(std::size_t part, std::size_t slot);
  void turn_to(std::size_t part);
  std::uint8_t* memory_of(std::size_t slot) const { return memory_.data() + slot * slot_bytes_; }

  const std::shared_ptr<WeightFile> file_;
  const bool cyclic_;
  std::vector<Part> parts_;
  std::vector<Slot> slots_;
  std::size_t slot_bytes_ = 0;
  PageMemory memory_;
  std::deque<std::size_t> ahead_;
  std::size_t entered_ = kNone;
  std::uint64_t round_ = 0, entries_ = 0;
  StreamUse use_;
};

}  // namespace ferrule
