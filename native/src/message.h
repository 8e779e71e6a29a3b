// What stands before every message on a channel, and what a rank says when it leaves.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "ferrule/ferrule.h"

namespace ferrule {

using Clock = std::chrono::steady_clock;

enum class Op : std::uint8_t {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  send,
  barrier,
  goodbye = 0x80,  // not an operation: the peer closed its group in an orderly way
  abort = 0x81,    // the peer gave up; root names the rank at fault
};

// One operation as a rank called it. Ranks compare calls before a byte of payload moves.
struct Call {
  Op op = Op::none;
  std::uint8_t dtype = 0;
  std::uint8_t reduction = 0;
  std::uint8_t unused = 0;
  std::int32_t root = -1;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;

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
struct Farewell {
  MessageHeader header;
  std::array<char, 224> text{};
};
static_assert(sizeof(Farewell) == 256);

// Ends an operation and closes the group; becomes a ferrule_failure at the C ABI.
struct Failure : std::exception {
  Failure(ferrule_status status_, int rank_, std::string message_)
      : status(status_), rank(rank_), message(std::move(message_)) {}
  const char* what() const noexcept override { return message.c_str(); }

  ferrule_status status;
  int rank;
  std::string message;
};

}  // namespace ferrule
