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

// More follows at once, so nothing is gained by sending this in a packet of its own.
#ifdef MSG_MORE
constexpr int kMore = MSG_MORE;
#else
constexpr int kMore = 0;
#endif

// Some kinds of sockets have no such option, and need none.
inline void set_option(int fd, int level, int option, int value) {
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

inline void refuse_signals([[maybe_unused]] int fd) {
#ifdef SO_NOSIGPIPE
  set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
}

inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace ferrule
