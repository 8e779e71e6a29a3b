// A pipe that wakes a thread from poll(); may be written by any thread.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "transports/message.h"

namespace ferrule {

class WakePipe {
 public:
  WakePipe() {
    if (::pipe(ends_) != 0) {
      throw Failure(Status::system, -1, std::string("cannot make a pipe: ") + std::strerror(errno));
    }
    for (const int end : ends_) {
      ::fcntl(end, F_SETFL, O_NONBLOCK);
      ::fcntl(end, F_SETFD, FD_CLOEXEC);
    }
  }
  ~WakePipe() {
    for (const int end : ends_) ::close(end);
  }
  WakePipe(const WakePipe&) = delete;
  WakePipe& operator=(const WakePipe&) = delete;

  void ring() {
    const char bell = 0;
    // A full pipe wakes as well.
    while (::write(ends_[1], &bell, 1) < 0 && errno == EINTR) {
    }
  }
  pollfd poll_for() const { return {ends_[0], POLLIN, 0}; }
  // All bells so far are heard.
  void clear() {
    char bells[64];
    while (::read(ends_[0], bells, sizeof bells) > 0) {
    }
  }

 private:
  int ends_[2];
};

}  // namespace ferrule
