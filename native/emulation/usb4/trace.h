// Appends packets to a pcapng file: Enhanced Packet Blocks (draft-ietf-opsawg-pcapng, section 4.3). The file's head is
// written by the program that opens it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ferrule::usb4 {

// Header before each packet's bytes; ferrule/lab/usb4/trace.py reads it.
struct TraceHeader {
  std::uint8_t version = 1;
  std::uint8_t kind = 0;  // 0: control packet, 1: frame of a path
  std::uint16_t flags = 0;
  std::uint16_t hop = 0;
  std::uint8_t sof = 0;
  std::uint8_t eof = 0;
};
static_assert(sizeof(TraceHeader) == 8);

constexpr std::uint16_t kTraceCorrupt = 1;
constexpr std::uint16_t kTraceDropped = 2;

class Trace {
 public:
  Trace() = default;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace();

  // Takes over a duplicate of `fd`. `most`: bytes of each packet that are kept.
  void open(int fd, std::size_t most);
  bool is_open() const { return fd_ >= 0; }
  void add(std::uint32_t interface, const TraceHeader& header, std::span<const std::byte> data);
  void flush();
  void close();
  std::uint64_t lost() const { return lost_; }  // packets that could not be written

 private:
  int fd_ = -1;
  std::size_t most_ = 0;
  std::vector<std::byte> waiting_;
  std::uint64_t packets_ = 0;  // in `waiting_`
  std::uint64_t lost_ = 0;
};

}  // namespace ferrule::usb4
