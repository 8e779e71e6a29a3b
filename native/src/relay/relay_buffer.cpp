#include "relay/relay_buffer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "assertions.h"
#include "transports/message.h"
#include "transports/socket.h"

namespace ferrule {
namespace {

constexpr std::size_t kRoomBytes = 256 << 10;

RelayBuffer::Flow flow_of(ssize_t moved) {
  if (moved > 0) return RelayBuffer::Flow::moved;
  return moved < 0 && would_block(errno) ? RelayBuffer::Flow::blocked : RelayBuffer::Flow::ended;
}

}  // namespace

CopyRelayBuffer::CopyRelayBuffer() : buffer_(kRoomBytes) {}

RelayBuffer::Flow CopyRelayBuffer::fill(int from) {
  FERRULE_ASSERT(empty());
  const ssize_t got = ::recv(from, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (got > 0) end_ = static_cast<std::size_t>(got);
  return flow_of(got);
}

RelayBuffer::Flow CopyRelayBuffer::drain(int to) {
  const ssize_t sent = ::send(to, buffer_.data() + begin_, end_ - begin_, kSendFlags);
  if (sent > 0) begin_ += static_cast<std::size_t>(sent);
  if (begin_ == end_) begin_ = end_ = 0;
  return flow_of(sent);
}

#ifdef __linux__
SpliceRelayBuffer::SpliceRelayBuffer() {
  if (::pipe2(pipe_, O_NONBLOCK | O_CLOEXEC) != 0) {
    throw Failure(Status::system, -1, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  (void)::fcntl(pipe_[1], F_SETPIPE_SZ, static_cast<int>(kRoomBytes));  // it works, slower, with less
}

SpliceRelayBuffer::~SpliceRelayBuffer() {
  for (const int end : pipe_) ::close(end);
}

RelayBuffer::Flow SpliceRelayBuffer::fill(int from) {
  const ssize_t got = ::splice(from, nullptr, pipe_[1], nullptr, kRoomBytes, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (got > 0) held_ += static_cast<std::size_t>(got);
  return flow_of(got);
}

RelayBuffer::Flow SpliceRelayBuffer::drain(int to) {
  const ssize_t sent = ::splice(pipe_[0], nullptr, to, nullptr, held_, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  FERRULE_ASSERT(sent <= static_cast<ssize_t>(held_));
  if (sent > 0) held_ -= static_cast<std::size_t>(sent);
  return flow_of(sent);
}
#endif

std::unique_ptr<RelayBuffer> RelayBuffer::make() {
#ifdef __linux__
  try {
    return std::make_unique<SpliceRelayBuffer>();
  } catch (const Failure&) {  // too many open files for a pipe: copying needs none
  }
#endif
  return std::make_unique<CopyRelayBuffer>();
}

}  // namespace ferrule
