// Differences between systems in how a socket is used.
#pragma once

#include <sys/socket.h>

#include <cerrno>

namespace ferrule {

// A write to a socket whose other end is gone is an error to look at, never a signal.
#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;  // macOS: refuse_signals
#endif

// A write that neither waits nor raises a signal.
constexpr int kSendFlags = MSG_DONTWAIT | kNoSignal;

inline void refuse_signals([[maybe_unused]] int fd) {
#ifdef SO_NOSIGPIPE
  const int on = 1;
  (void)::setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
}

inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace ferrule
