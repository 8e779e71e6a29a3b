// Wire format of heartbeat messages: small frames on a connection of their own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "operation.h"

namespace ferrule {

enum class HeartbeatKind : std::uint8_t {
  beat = 1,     // I am there
  goodbye = 2,  // this rank needs no other any more; its end will mean nothing
  accuse = 3,   // `rank` does not answer me; you decide
  lost = 4,     // `rank` is lost to us all
  verdict = 5,  // the group of `epoch` ended: why, and which of its ranks is at fault
};

constexpr std::size_t kHeartbeatTextBytes = 255;

struct HeartbeatMessage {
  HeartbeatKind kind = HeartbeatKind::beat;
  Status status = Status::ok;  // of a verdict
  std::int32_t rank = -1;
  std::uint64_t epoch = 0;     // the heartbeat's own; a group's in a verdict
  std::uint64_t sequence = 0;  // counts all that its sender ever said
  std::string text{};          // cut to kHeartbeatTextBytes bytes

  friend bool operator==(const HeartbeatMessage&, const HeartbeatMessage&) = default;
};

void append(std::vector<std::byte>& to, const HeartbeatMessage& message);

// Puts frames together from whatever pieces a socket gives. It holds one frame at most; a stream that once made no
// sense makes none ever after.
class HeartbeatReader {
 public:
  // Take bytes from the front of `bytes`. True: `into` is a whole frame, and more may follow. False: all are taken.
  bool read(std::span<const std::byte>& bytes, HeartbeatMessage& into);
  bool broken() const { return broken_; }

 private:
  static constexpr std::size_t kHeader = 32;
  bool check_header();

  std::array<std::byte, kHeader + kHeartbeatTextBytes> frame_{};
  std::size_t got_ = 0;
  std::size_t want_ = kHeader;
  bool broken_ = false;
};

}  // namespace ferrule
