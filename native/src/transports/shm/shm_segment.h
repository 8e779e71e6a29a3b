// The shared memory of the ranks of one host: per rank flags and slots, per stream and ordered pair of ranks a ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transports/message.h"

namespace ferrule {

constexpr std::size_t kLine = 64;  // everything that one rank writes and another reads has its own cache lines
constexpr std::size_t kSlotBytes = 64 << 10;
constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::uint64_t kChunks = 4;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the segment is shared between processes");

// Call of a rank, published for its peers. `round` is written last.
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

// This rank is, or is about to be, asleep in poll() on behalf of one stream.
struct alignas(kLine) Sleeping {
  std::atomic<std::uint32_t> value;
};

struct RankBlock {
  Sleeping sleeping[kStreams];
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

constexpr std::size_t kTokenBytes = 16;

class Segment {
  // Memory that other processes find at `place`.
  struct Shelter {
    std::string place;
    int fd = -1;

    Shelter() = default;
    Shelter(Shelter&& other) noexcept : place(std::move(other.place)), fd(std::exchange(other.fd, -1)) {
      other.place.clear();
    }
    Shelter& operator=(Shelter&&) = delete;
    ~Shelter() { hide(); }
    static Shelter make();
    void hide();
  };

 public:
  // Throws std::runtime_error with a reason for people.
  static std::unique_ptr<Segment> create(const std::uint8_t* token, int ranks);
  static std::unique_ptr<Segment> open(const std::string& place, const std::uint8_t* token, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Path at which other processes open it, until `hide`; empty in processes that did not create it.
  const std::string& place() const { return shelter_.place; }
  void hide() { shelter_.hide(); }
  int ranks() const { return ranks_; }
  RankBlock& rank(int index) const;
  std::atomic<std::uint32_t>& sleeping(int index, Stream stream) const;
  RingHeader& ring(Stream stream, int from, int to) const;
  std::byte* ring_data(Stream stream, int from, int to) const;
  std::size_t ring_bytes(Stream stream) const;

 private:
  Segment(void* base, std::size_t bytes, int ranks, Shelter shelter)
      : base_(static_cast<std::byte*>(base)), bytes_(bytes), ranks_(ranks), shelter_(std::move(shelter)) {}
  std::size_t ring_offset(Stream stream, int from, int to) const;

  std::byte* const base_;
  const std::size_t bytes_;
  const int ranks_;
  Shelter shelter_;
};

}  // namespace ferrule
