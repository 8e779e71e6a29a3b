// Frame header: before the bytes of every message on a queue pair. Little-endian, like all of Ferrule's wire.
#pragma once

#include <cstdint>

namespace ferrule {

enum class VerbsFrameKind : std::uint8_t {
  data,
  hello,  // the path works
  state,  // what was received and consumed so far; the others say that, too
  gap,    // frames are missing: send again from there on
  ask,    // answer
  answer,
  grant,  // numbered as data: where a message that is to come may be written
};

struct VerbsFrameHeader {
  std::uint32_t token = 0;     // the receiver's, told over an authenticated connection: no leftover, no stranger has it
  std::uint32_t sequence = 0;  // of data frames; in all others the one that is expected next
  std::uint32_t consumed = 0;  // data frames so far whose slots the peer may fill again
  std::uint16_t bytes = 0;     // that follow
  VerbsFrameKind kind = VerbsFrameKind::data;
  std::uint8_t unused = 0;
};
static_assert(sizeof(VerbsFrameHeader) == 16);

}  // namespace ferrule
