// Whether this machine has a spare processor: then polling takes none from another thread.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "emulation/shaper/packet.h"

namespace ferrule::shaper {

// The kernel counts the threads that run or want to; looked at now and then, because reading takes some microseconds.
class Spare {
 public:
  Spare() : fd_(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC)) {}
  ~Spare() {
    if (fd_ >= 0) ::close(fd_);
  }
  Spare(const Spare&) = delete;
  Spare& operator=(const Spare&) = delete;

  // There are at most as many as there are processors, this thread among them.
  bool look(Time now) {
    if (now - looked_ >= kInterval) {
      looked_ = now;
      spare_ = running() <= processors_;
    }
    return spare_;
  }

 private:
  // The fourth field is "running/all". Without /proc: too many, so that no thread polls.
  long running() const {
    char text[128] = {};
    if (fd_ < 0 || ::pread(fd_, text, sizeof text - 1, 0) <= 0) return processors_ + 1;
    const char* at = text;
    for (int field = 0; field < 3 && at != nullptr; ++field) {
      at = std::strchr(at, ' ');
      if (at != nullptr) ++at;
    }
    return at == nullptr ? processors_ + 1 : std::strtol(at, nullptr, 10);
  }

  static constexpr Time kInterval = 500'000;

  int fd_;
  long processors_ = static_cast<long>(std::thread::hardware_concurrency());
  Time looked_ = 0;
  bool spare_ = false;
};

}  // namespace ferrule::shaper
