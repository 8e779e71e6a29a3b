// What goes between two processes before a comm carries data: the handle, by way of NCCL, and the handshake.
//
//     hello      connector -> listener   for which listener, what for, a random number
//     challenge  listener -> connector   another random number
//     proof      connector -> listener   HMAC-SHA256(key, "ferrule nccl client" + hello + challenge)
//     verdict    listener -> connector   HMAC-SHA256(key, "ferrule nccl server" + hello + challenge), or a refusal
//
// It is the handshake of Ferrule's ranks (secure/handshake.py) with other fields. All messages have a fixed size.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "nccl/abi.h"

namespace ferrule::nccl {

using Id = std::array<std::uint8_t, 16>;       // random, of a process, a link or a comm
using Address = std::array<std::uint8_t, 16>;  // of IPv6; of IPv4 as ::ffff:a.b.c.d
using Nonce = std::array<std::uint8_t, 32>;
using Mac = std::array<std::uint8_t, 32>;

constexpr std::uint64_t kMagic = 0x316c63636e657266;  // "frenccl1": what follows it changes with the digit
constexpr std::size_t kMaxAddresses = 4;
constexpr Id kNone{};

struct Handle {
  std::uint64_t magic = kMagic;
  Id process{};
  std::uint64_t listener = 0;  // its number
  std::uint64_t secret = 0;    // takes the place of the key where there is none, on loopback; else unused
  std::uint64_t host = 0;      // equal where memory can be shared, see identity.h
  std::uint16_t port = 0;
  std::uint8_t addresses = 0;
  std::uint8_t unused[5]{};
  std::array<Address, kMaxAddresses> address{};
  std::uint64_t attempt = 0;  // the connector's, between its calls; 0: none yet
};
static_assert(sizeof(Handle) == kHandleBytes && std::is_trivially_copyable_v<Handle>);

enum class Purpose : std::uint8_t { beats = 1, tcp = 2, shm = 3 };

struct Hello {
  std::uint64_t magic = kMagic;
  Purpose purpose{};
  std::uint8_t rail = 0;
  std::uint8_t rails = 1;
  std::uint8_t unused[5]{};
  std::uint64_t listener = 0;
  Id link{};  // whose beats tell that both processes live; none within one process
  Id comm{};
  Nonce nonce{};
  // With shm: where the segment is and its token.
  std::array<char, 64> place{};
  Id token{};
};
static_assert(sizeof(Hello) == 168 && std::is_trivially_copyable_v<Hello>);

struct Challenge {
  std::uint64_t magic = kMagic;
  Nonce nonce{};
};
static_assert(sizeof(Challenge) == 40);

enum class Answer : std::uint8_t {
  welcome,
  wrong_key,
  no_listener,  // it was closed
  no_link,      // it ended meanwhile: make another one
  no_memory,    // the segment cannot be opened
};

struct Verdict {
  std::uint64_t magic = kMagic;
  Answer answer{};
  std::uint8_t unused[7]{};
  Mac mac{};
};
static_assert(sizeof(Verdict) == 48);

template <class Message>
std::span<std::byte> bytes_of(Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return std::as_writable_bytes(std::span(&message, 1));
}

// In the data stream of a comm. The receiver posts (multi-)receives, and the sender names the slot of the first one
// that is not full yet.
constexpr std::size_t kMaxReceives = 8;  // grouped ones

struct Slot {
  std::int32_t tag = 0;
  std::uint32_t unused = 0;
  std::uint64_t size = 0;
};

struct Posting {
  std::uint32_t sequence = 0;
  std::uint32_t slots = 0;  // which follow
};

struct Message {
  std::uint32_t sequence = 0;
  std::uint32_t slot = 0;
  std::uint64_t size = 0;
};
static_assert(sizeof(Slot) == 16 && sizeof(Posting) == 8 && sizeof(Message) == 16);

}  // namespace ferrule::nccl
