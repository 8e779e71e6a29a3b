// The memory that the ranks of one host share: per rank its flags and slots, per lane and ordered
// pair of ranks a ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "message.h"

namespace ferrule {

constexpr std::size_t kLine = 64;  // everything that one rank writes and another reads has its own cache lines
constexpr std::size_t kSlotBytes = 64 << 10;
constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::uint64_t kChunks = 4;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the segment is shared between processes");

// What a rank called, published for its peers. `round` is written last.
struct alignas(kLine) CallLine {
  std::atomic<std::uint64_t> round;
  Call call;
};

struct alignas(kLine) Counter {
  std::atomic<std::uint64_t> value;
};

// A rank may be one collective ahead of a peer but never two, hence two of each.
struct Slot {
  CallLine line;
  std::byte data[kSlotBytes];
};

// This rank is, or is about to be, asleep in poll() on behalf of one lane.
struct alignas(kLine) Sleeping {
  std::atomic<std::uint32_t> value;
};

struct RankBlock {
  Sleeping sleeping[kLanes];
  Counter filled;    // chunks that peers may read
  Counter reduced;   // chunks whose result peers may take
  Counter consumed;  // chunks of its peers that this rank needs no more
  Slot slots[2];
  alignas(kLine) std::byte chunks[kChunks][kChunkBytes];
};

struct RingHeader {
  alignas(kLine) std::atomic<std::uint64_t> head;  // bytes written since the beginning; the writer's
  alignas(kLine) std::atomic<std::uint64_t> tail;  // bytes read; the reader's
};

class Segment {
 public:
  // Throws std::runtime_error with a reason for people.
  static std::unique_ptr<Segment> create(const std::string& name, const std::uint8_t* token, int ranks);
  static std::unique_ptr<Segment> open(const std::string& name, const std::uint8_t* token, int ranks);
  static void unlink(const std::string& name);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int ranks() const { return ranks_; }
  RankBlock& rank(int index) const;
  std::atomic<std::uint32_t>& sleeping(int index, Lane lane) const;
  RingHeader& ring(Lane lane, int from, int to) const;
  std::byte* ring_data(Lane lane, int from, int to) const;
  std::size_t ring_bytes(Lane lane) const;

 private:
  Segment(void* base, std::size_t bytes, int ranks) : base_(static_cast<std::byte*>(base)), bytes_(bytes), ranks_(ranks) {}
  std::size_t ring_offset(Lane lane, int from, int to) const;

  std::byte* const base_;
  const std::size_t bytes_;
  const int ranks_;
};

}  // namespace ferrule
