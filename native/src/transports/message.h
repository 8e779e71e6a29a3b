// Wire format: the header before every message on a channel, and the close notice that a rank sends when it leaves.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>

#include "operation.h"

namespace ferrule {

using Clock = std::chrono::steady_clock;

// For poll(): rounded up, and at least 0.
inline int poll_milliseconds(Clock::duration left) {
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(whole, 0, std::numeric_limits<int>::max()));
}

// Variant of a send whose payload was written to where the receiver granted that, and does not follow.
constexpr std::uint8_t kPlaced = 1;

// One operation as a rank called it. Ranks compare calls before a byte of payload moves.
struct Call {
  Op op = Op::none;
  std::uint8_t dtype = 0;
  std::uint8_t reduction = 0;
  std::uint8_t variant = 0;  // 0, or which kind and phase of it: both ends must mean the same
  std::int32_t root = -1;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;

  bool averages() const { return reduction == static_cast<std::uint8_t>(Reduction::avg); }
  friend bool operator==(const Call&, const Call&) = default;
};
static_assert(sizeof(Call) == 24);

// "all_reduce(sum, float32, 4096 bytes) #12"
std::string describe(const Call& call);

// Little-endian on the wire, like every machine that Ferrule runs on.
struct MessageHeader {
  std::uint64_t epoch = 0;
  Call call;

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};
static_assert(sizeof(MessageHeader) == 32);

// The last thing on a socket before it closes. A socket that ends without one belonged to a rank that died.
struct CloseNotice {
  MessageHeader header;
  std::array<char, 224> text{};
};
static_assert(sizeof(CloseNotice) == 256);

// Ends an operation and closes the group.
struct Failure : std::exception {
  Failure(Status status_, int rank_, std::string message_)
      : status(status_), rank(rank_), message(std::move(message_)) {}
  const char* what() const noexcept override { return message.c_str(); }

  Status status;
  int rank;
  std::string message;
  // A connection ended and nothing said why: the heartbeat may know.
  bool unexplained = false;
};

// `rank` called what does not go with what `other` called.
Failure mismatch(int rank, const Call& ours, int other, const Call& theirs);

// Failure that ended the group at `rank`, as that tells the others, and as one of them understands it.
Failure told_by(int rank, const Failure& cause);
Failure heard_by(int rank, const Failure& told);

}  // namespace ferrule
