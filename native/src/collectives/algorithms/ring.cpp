// Around a ring, both ways at once. A block that belongs to a place starts behind it, takes every rank's part on its
// way around, and arrives complete; then the complete blocks go around once more.
#include <algorithm>
#include <functional>
#include <map>

#include "collectives/algorithms/algorithms.h"

namespace ferrule {
namespace {

constexpr std::size_t kBlock = 2 << 20;  // the largest block; longer arrays go around several times
constexpr std::size_t kChunk = 256 << 10;
// Slots for two blocks: the one of the last step leaves while the next comes in.
constexpr std::size_t kSlots = 2 * kBlock / kChunk;

// A block of every place, and where ours lies when complete.
struct Blocks {
  std::function<Bytes(int place)> block;
  std::size_t element;
};

template <class Each>
void for_chunks(Bytes block, Each&& each) {
  for (std::size_t at = 0; at < block.size(); at += kChunk)
    each(at / kChunk, block.subspan(at, std::min(kChunk, block.size() - at)));
}

class Direction {
 public:
  Direction(Program& program, const Ring& ring, int way, std::byte* scratch)
      : program_(program),
        ring_(ring),
        way_(way),
        next_(ring.at(ring.position + way)),
        before_(ring.at(ring.position - way)),
        slots_(scratch, kChunk, kSlots) {}

  // Our block's complete chunks go to `target`; the inputs in `blocks` are only read.
  void reduce(const Blocks& blocks, std::byte* target, const Combine& combine) {
    struct Carried {
      Slots::Slot slot;
      Bytes data;
      Program::Step ready;
    };
    std::vector<Carried> carried;
    readers_.clear();
    complete_.clear();
    for (int step = 0; step < ring_.size() - 1; ++step) {
      const int leaving = ring_.wrap(ring_.position - way_ * (step + 1));
      const int coming = ring_.wrap(ring_.position - way_ * (step + 2));
      if (step == 0) {
        for_chunks(blocks.block(leaving), [&](std::size_t index, Bytes chunk) {
          readers_[{leaving, index}] = program_.send(next_, chunk);
        });
      }
      for (const Carried& one : carried) slots_.release(one.slot, program_.send(next_, one.data, {one.ready}));
      carried.clear();
      for_chunks(blocks.block(coming), [&](std::size_t index, Bytes own) {
        const Slots::Slot slot = slots_.take();
        const Program::Step arrived = program_.receive(before_, {slot.data, own.size()}, {slot.free});
        const bool last = step == ring_.size() - 2;
        std::byte* const to = last ? target + index * kChunk : slot.data;
        const Program::Step sum = program_.combine(last ? combine.last : combine.partial, to, {slot.data, own.data()},
                                                   own.size() / blocks.element, combine.ranks, {arrived});
        readers_[{coming, index}] = sum;
        if (last) {
          slots_.release(slot, sum);
          complete_.push_back(sum);
        } else {
          carried.push_back({slot, {slot.data, own.size()}, sum});
        }
      });
    }
  }

  // Our block is complete (after the reduction, if there was one); fill in those of the other places.
  void gather(const Blocks& blocks) {
    std::vector<Program::Step> ready = complete_;
    for (int step = 0; step < ring_.size() - 1; ++step) {
      const int leaving = ring_.wrap(ring_.position - way_ * step);
      const int coming = ring_.wrap(ring_.position - way_ * (step + 1));
      for_chunks(blocks.block(leaving), [&](std::size_t index, Bytes chunk) {
        program_.send(next_, chunk, {index < ready.size() ? ready[index] : Program::kNone});
      });
      ready.clear();
      for_chunks(blocks.block(coming), [&](std::size_t index, Bytes chunk) {
        const auto reader = readers_.find({coming, index});
        ready.push_back(program_.receive(before_, chunk, {reader == readers_.end() ? Program::kNone : reader->second}));
      });
    }
  }

 private:
  Program& program_;
  const Ring& ring_;
  const int way_;
  const int next_;
  const int before_;
  Slots slots_;
  std::map<std::pair<int, std::size_t>, Program::Step> readers_;  // who last reads our part of a block's chunk
  std::vector<Program::Step> complete_;                           // our block's chunks
};

// Call each(offset, bytes) for as many elements at a time as go around at once, `share` blocks wide.
template <class Each>
void for_rounds(std::size_t bytes, std::size_t element, std::size_t share, Each&& each) {
  const std::size_t most = share * kBlock / element * element;
  for (std::size_t at = 0; at < bytes; at += most) each(at, std::min(most, bytes - at));
}

// Part `index` of `count` nearly equal ones of an array of `bytes`.
Bytes part_of(Bytes array, std::size_t element, std::size_t index, std::size_t count) {
  const std::size_t begin = part_begin(array.size(), element, index, count);
  return array.subspan(begin, part_begin(array.size(), element, index + 1, count) - begin);
}

constexpr int kWays[] = {1, -1};

}  // namespace

std::size_t ring_scratch() { return 2 * kSlots * kChunk; }

void ring_all_reduce(Program& program, const Ring& ring, const Array& data, const Combine& combine,
                     std::byte* scratch) {
  const auto n = static_cast<std::size_t>(ring.size());
  Direction directions[] = {{program, ring, kWays[0], scratch}, {program, ring, kWays[1], scratch + kSlots * kChunk}};
  for_rounds(data.bytes, data.element, n, [&](std::size_t at, std::size_t bytes) {
    for (std::size_t half = 0; half < 2; ++half) {
      const Bytes mine = part_of({data.data + at, bytes}, data.element, half, 2);
      const Blocks blocks{[=](int place) { return part_of(mine, data.element, static_cast<std::size_t>(place), n); },
                          data.element};
      directions[half].reduce(blocks, blocks.block(ring.position).data(), combine);
      directions[half].gather(blocks);
    }
  });
}

void ring_reduce_scatter(Program& program, const Ring& ring, const std::byte* in, const Array& out,
                         const Combine& combine, std::byte* scratch) {
  Direction directions[] = {{program, ring, kWays[0], scratch}, {program, ring, kWays[1], scratch + kSlots * kChunk}};
  for_rounds(out.bytes, out.element, 1, [&](std::size_t at, std::size_t bytes) {
    for (std::size_t half = 0; half < 2; ++half) {
      const auto of = [=](std::byte* start) { return part_of({start + at, bytes}, out.element, half, 2); };
      const Blocks blocks{[=](int place) {
                            const auto rank = static_cast<std::size_t>(ring.at(place));
                            return of(const_cast<std::byte*>(in) + rank * out.bytes);  // it is only read
                          },
                          out.element};
      directions[half].reduce(blocks, of(out.data).data(), combine);
    }
  });
}

void ring_all_gather(Program& program, const Ring& ring, std::byte* out, std::size_t bytes, std::size_t element) {
  Direction directions[] = {{program, ring, kWays[0], nullptr}, {program, ring, kWays[1], nullptr}};
  for_rounds(bytes, element, 1, [&](std::size_t at, std::size_t size) {
    for (std::size_t half = 0; half < 2; ++half) {
      const Blocks blocks{[=](int place) {
                            std::byte* const start = out + static_cast<std::size_t>(ring.at(place)) * bytes + at;
                            return part_of({start, size}, element, half, 2);
                          },
                          element};
      directions[half].gather(blocks);
    }
  });
}

}  // namespace ferrule
