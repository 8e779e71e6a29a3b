#include "conduit.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "message.h"
#include "socket.h"

namespace ferrule {
namespace {

constexpr std::size_t kRoom = 256 << 10;

Conduit::Flow flow_of(ssize_t moved) {
  if (moved > 0) return Conduit::Flow::moved;
  return moved < 0 && would_block(errno) ? Conduit::Flow::blocked : Conduit::Flow::ended;
}

}  // namespace

BufferConduit::BufferConduit() : buffer_(kRoom) {}

Conduit::Flow BufferConduit::fill(int from) {
  const ssize_t got = ::recv(from, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (got > 0) end_ = static_cast<std::size_t>(got);
  return flow_of(got);
}

Conduit::Flow BufferConduit::drain(int to) {
  const ssize_t sent = ::send(to, buffer_.data() + begin_, end_ - begin_, MSG_DONTWAIT | kNoSignal);
  if (sent > 0) begin_ += static_cast<std::size_t>(sent);
  if (begin_ == end_) begin_ = end_ = 0;
  return flow_of(sent);
}

#ifdef __linux__
SpliceConduit::SpliceConduit() {
  if (::pipe2(pipe_, O_NONBLOCK | O_CLOEXEC) != 0) {
    throw Failure(FERRULE_SYSTEM, -1, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  (void)::fcntl(pipe_[1], F_SETPIPE_SZ, static_cast<int>(kRoom));  // it works, slower, with less
}

SpliceConduit::~SpliceConduit() {
  for (const int end : pipe_) ::close(end);
}

Conduit::Flow SpliceConduit::fill(int from) {
  const ssize_t got = ::splice(from, nullptr, pipe_[1], nullptr, kRoom, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (got > 0) held_ += static_cast<std::size_t>(got);
  return flow_of(got);
}

Conduit::Flow SpliceConduit::drain(int to) {
  const ssize_t sent = ::splice(pipe_[0], nullptr, to, nullptr, held_, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (sent > 0) held_ -= static_cast<std::size_t>(sent);
  return flow_of(sent);
}
#endif

std::unique_ptr<Conduit> Conduit::make() {
#ifdef __linux__
  try {
    return std::make_unique<SpliceConduit>();
  } catch (const Failure&) {  // too many open files for a pipe: copying needs none
  }
#endif
  return std::make_unique<BufferConduit>();
}

}  // namespace ferrule
