// Two processes that each have the plugin open, and a socket between them in the place of NCCL's own bootstrap.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "nccl/table.h"

namespace nccl_test {

using TestClock = std::chrono::steady_clock;
using Handle = std::array<char, kHandleBytes>;

class Meeting {
 public:
  explicit Meeting(int fd) : fd_(fd) {}
  ~Meeting() { ::close(fd_); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  template <class Value>
  void tell(const Value& value) {
    CHECK(::send(fd_, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value));
  }
  template <class Value>
  Value hear() {
    Value value{};
    std::size_t got = 0;
    while (got < sizeof value) {
      pollfd one{fd_, POLLIN, 0};
      if (::poll(&one, 1, 60'000) != 1) testing::fail(__FILE__, __LINE__, "the other rank says nothing for a minute");
      const ssize_t n = ::recv(fd_, reinterpret_cast<char*>(&value) + got, sizeof value - got, 0);
      if (n <= 0) testing::fail(__FILE__, __LINE__, "the other rank has ended");
      got += static_cast<std::size_t>(n);
    }
    return value;
  }
  void barrier() {
    tell('b');
    CHECK(hear<char>() == 'b');
  }

 private:
  const int fd_;
};

template <class Body>
pid_t fork_with(Body&& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child != 0) return child;
  body();
  std::exit(0);  // with the checks of leaks
}

// Each in a process of its own, as the plugin reads its settings once. `body`: rank, meeting, and for rank 0 the
// process of the other one.
template <class Body>
void as_two(Body&& body) {
  const std::pair<int, int> ends = testing::socket_pair();
  const auto run = [&](int rank, pid_t other) {
    ::close(rank == 0 ? ends.second : ends.first);
    Meeting meeting(rank == 0 ? ends.first : ends.second);
    body(rank, meeting, other);
  };
  const pid_t second = fork_with([&] { run(1, -1); });
  const pid_t first = fork_with([&] { run(0, second); });
  ::close(ends.first);
  ::close(ends.second);
  int status = 0;
  CHECK(::waitpid(first, &status, 0) == first);
  const bool well = status == 0;
  if (!well) ::kill(second, SIGKILL);
  CHECK(::waitpid(second, &status, 0) == second);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;  // by a case that does that
  if (!well || (!killed && status != 0)) testing::fail(__FILE__, __LINE__, well ? "rank 1 failed" : "rank 0 failed");
}

// For ranks in different network namespaces, which share the file system.
inline int meet_at(const char* path, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CHECK(std::strlen(path) < sizeof address.sun_path);
  std::strcpy(address.sun_path, path);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (rank == 0) {
    CHECK(::bind(fd, any, sizeof address) == 0 && ::listen(fd, 1) == 0);
    pollfd one{fd, POLLIN, 0};
    CHECK(::poll(&one, 1, 60'000) == 1);
    const int other = ::accept(fd, nullptr, nullptr);
    ::close(fd);
    return other;
  }
  CHECK(testing::soon([&] { return ::connect(fd, any, sizeof address) == 0; }, 60));
  return fd;
}

// One way between the ranks: `sender` sends. NCCL's dance of non-blocking calls.
struct Way {
  int sender;
  void* comm = nullptr;
  void* memory = nullptr;  // registration of all that it uses
};

inline Result try_join(Net& net, Meeting& meeting, int rank, Way& way, double seconds = 30) {
  Result result = kSuccess;
  if (way.sender == rank) {
    auto handle = meeting.hear<Handle>();
    CHECK(testing::soon(
        [&] {
          result = net.connect(0, handle.data(), &way.comm);
          return result != kSuccess || way.comm != nullptr;
        },
        seconds));
    meeting.tell(result);
    return result;
  }
  Handle handle{};
  void* listener = nullptr;
  CHECK(net.listen(0, handle.data(), &listener) == kSuccess && listener != nullptr);
  CHECK(net.accept(listener, &way.comm) == kSuccess && way.comm == nullptr);
  meeting.tell(handle);
  result = meeting.hear<Result>();
  if (result == kSuccess) {
    CHECK(testing::soon([&] { return net.accept(listener, &way.comm) != kSuccess || way.comm != nullptr; }, seconds));
    CHECK(way.comm != nullptr);
  }
  CHECK(net.close_listen(listener) == kSuccess);
  return result;
}

inline void join(Net& net, Meeting& meeting, int rank, Way& way) {
  const Result result = try_join(net, meeting, rank, way);
  if (result != kSuccess) testing::fail(__FILE__, __LINE__, "cannot connect: " + Log::warnings());
}

inline void leave(Net& net, int rank, Way& way) {
  CHECK((way.sender == rank ? net.close_send : net.close_receive)(way.comm) == kSuccess);
  way.comm = nullptr;
}

// Descriptors and threads of this process: what is open.
inline std::pair<std::size_t, std::size_t> resources() {
  const auto count = [](const char* path) {
    const std::filesystem::directory_iterator entries(path);
    return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
  };
  return {count("/proc/self/fd"), count("/proc/self/task")};
}

// They are as they were. ThreadSanitizer opens some of its own.
inline bool are_again([[maybe_unused]] const std::pair<std::size_t, std::size_t>& before) {
#ifdef __SANITIZE_THREAD__
  return true;
#else
  return testing::soon([&] { return resources() == before; });
#endif
}

}  // namespace nccl_test
