// Reassembly of a striped byte stream: bytes come in any order and leave in order.
//
// Bytes go straight to the memory that the user offers, where that reaches; the others are copied and kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>

namespace ferrule {

class Inbound {
 public:
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;

  // Memory for the bytes from taken() on. It stands until it is filled; until then a new offer begins at the same
  // place as the rest of this one.
  void offer(Bytes into) { offer_ = into; }
  void withdraw() { offer_ = {}; }
  std::size_t offered() const { return offer_.size(); }
  // Number of bytes at the front of the offer that are filled. They are the user's from here on.
  std::size_t take();

  // Memory into which up to `size` bytes at `position` may be written directly, if there is any; and that they were.
  Bytes place(std::uint64_t position, std::size_t size) const;
  void placed(std::uint64_t position, std::size_t size) { mark(position, size); }
  // The same with a copy, wherever they belong.
  void store(std::uint64_t position, ConstBytes bytes);
  // Length of the offer from `position` on; without end where there is none.
  std::size_t reach(std::uint64_t position) const {
    if (offer_.empty()) return std::numeric_limits<std::size_t>::max();
    return static_cast<std::size_t>(std::max(position, taken_ + offer_.size()) - position);
  }
  // Whether a user is waiting, but not yet for the byte at `position`.
  bool early(std::uint64_t position) const { return reach(position) == 0; }

  std::uint64_t taken() const { return taken_; }        // by the user
  std::uint64_t received() const { return received_; }  // without a gap
  std::size_t gaps() const { return ahead_.size(); }

 private:
  void put(std::uint64_t position, ConstBytes bytes);
  void stash(std::uint64_t position, ConstBytes bytes);
  void mark(std::uint64_t position, std::size_t size);

  Bytes offer_;
  std::uint64_t taken_ = 0;
  // Everything in [taken_, received_) that is not in the stash is in the offered memory.
  std::uint64_t received_ = 0;
  std::map<std::uint64_t, std::uint64_t> ahead_;  // begin and end of what is there behind a gap
  std::map<std::uint64_t, std::vector<std::byte>> stash_;
};

}  // namespace ferrule
