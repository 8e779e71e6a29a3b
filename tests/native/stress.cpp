// Ranks as threads of one process, doing random operations and checking every result: made for the sanitizers.
//
//   cmake -S native -B build/tsan -DFERRULE_PYTHON=OFF -DFERRULE_TESTS=ON -DFERRULE_SANITIZE=thread
//
// "groups" runs whole groups through the C ABI, each with its own mapping of the segment. "shared" runs the
// collectives over one mapping: only then can the thread sanitizer see that two ranks touch the same memory.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collectives_local.h"
#include "ferrule/ferrule.h"

namespace {

constexpr double kTimeout = 60;
constexpr double kSpinMicroseconds = 20;
constexpr double kYieldMicroseconds = 50;
constexpr std::size_t kSizes[] = {0, 1, 3, 16, 1000, 16384, 16385, 70000, 150001, 400003};

void require(bool condition, const char* what, int rank) {
  if (condition) return;
  std::fprintf(stderr, "rank %d: %s\n", rank, what);
  std::abort();
}

std::vector<std::vector<int>> connect_all(int size) {
  std::vector<std::vector<int>> fds(static_cast<std::size_t>(size), std::vector<int>(static_cast<std::size_t>(size), -1));
  for (std::size_t a = 0; a < fds.size(); ++a) {
    for (std::size_t b = a + 1; b < fds.size(); ++b) {
      int pair[2];
      require(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair", static_cast<int>(a));
      fds[a][b] = pair[0];
      fds[b][a] = pair[1];
    }
  }
  return fds;
}

// Element i of rank r's input is value(i) + r, so that sums over ranks are easy to tell.
std::int32_t value(std::size_t i, int operation) { return static_cast<std::int32_t>(i * 7 + static_cast<std::size_t>(operation)); }

std::vector<std::int32_t> input(std::size_t count, int operation, int rank) {
  std::vector<std::int32_t> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = value(i, operation) + rank;
  return x;
}

std::int32_t sum(std::size_t i, int operation, int size) { return value(i, operation) * size + size * (size - 1) / 2; }

void operate(ferrule_group* group, int rank, int size, int operation, int kind, std::size_t count) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::int32_t> x = input(count, operation, rank);
  ferrule_status status = FERRULE_OK;
  if (kind == 0) {
    status = ferrule_all_reduce(group, x.data(), count, FERRULE_I32, FERRULE_SUM, kTimeout);
    for (std::size_t i = 0; i < count; ++i) require(x[i] == sum(i, operation, size), "all_reduce", rank);
  } else if (kind == 1) {
    std::vector<std::int32_t> out(count * n);
    status = ferrule_all_gather(group, x.data(), out.data(), count, FERRULE_I32, kTimeout);
    for (std::size_t i = 0; i < out.size(); ++i) {
      require(out[i] == value(i % count, operation) + static_cast<int>(i / count), "all_gather", rank);
    }
  } else if (kind == 2) {
    const std::vector<std::int32_t> in = input(count * n, operation, rank);
    status = ferrule_reduce_scatter(group, in.data(), x.data(), count, FERRULE_I32, FERRULE_SUM, kTimeout);
    const std::size_t begin = static_cast<std::size_t>(rank) * count;
    for (std::size_t i = 0; i < count; ++i) require(x[i] == sum(begin + i, operation, size), "reduce_scatter", rank);
  } else if (kind == 3) {
    const int root = operation % size;
    status = ferrule_broadcast(group, x.data(), count, FERRULE_I32, root, kTimeout);
    for (std::size_t i = 0; i < count; ++i) require(x[i] == value(i, operation) + root, "broadcast", rank);
  } else if (kind == 4 && size > 1) {
    const int before = (rank + size - 1) % size;
    if (rank == 0) {
      status = ferrule_send(group, x.data(), count, FERRULE_I32, (rank + 1) % size, kTimeout);
      if (status == FERRULE_OK) status = ferrule_recv(group, x.data(), count, FERRULE_I32, before, kTimeout);
    } else {
      std::vector<std::int32_t> y(count);
      status = ferrule_recv(group, y.data(), count, FERRULE_I32, before, kTimeout);
      if (status == FERRULE_OK) {
        status = ferrule_send(group, x.data(), count, FERRULE_I32, (rank + 1) % size, kTimeout);
      }
      x = y;
    }
    for (std::size_t i = 0; i < count; ++i) require(x[i] == value(i, operation) + before, "recv", rank);
  } else {
    status = ferrule_barrier(group, kTimeout);
  }
  require(status == FERRULE_OK, "an operation failed", rank);
}

void run_all(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

ferrule_group* make_group(int rank, const std::vector<int>& fds, ferrule_segment* segment) {
  std::vector<int> local(fds.size());
  for (std::size_t i = 0; i < local.size(); ++i) local[i] = static_cast<int>(i);
  ferrule_group_options options{};
  options.abi_version = FERRULE_ABI_VERSION;
  options.rank = rank;
  options.size = static_cast<int>(fds.size());
  options.epoch = 4711;
  options.fds = fds.data();
  options.local_index = segment == nullptr ? nullptr : local.data();
  options.segment = segment;
  options.spin_us = kSpinMicroseconds;
  options.yield_us = kYieldMicroseconds;
  ferrule_group* group = nullptr;
  char error[256] = "";
  require(ferrule_group_create(&options, &group, error, sizeof error) == FERRULE_OK, error, rank);
  return group;
}

void groups(int size, bool shared_memory, int operations) {
  const std::vector<std::vector<int>> fds = connect_all(size);
  const std::string name = "/ferrule-stress-" + std::to_string(::getpid());
  const std::uint8_t token[FERRULE_TOKEN_BYTES] = {1, 2, 3};
  std::vector<ferrule_segment*> segments(static_cast<std::size_t>(size), nullptr);
  if (shared_memory) {
    char error[256] = "";
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto make = i == 0 ? ferrule_segment_create : ferrule_segment_open;
      require(make(name.c_str(), token, size, &segments[i], error, sizeof error) == FERRULE_OK, error, 0);
    }
    ferrule_segment_unlink(name.c_str());
  }
  std::vector<ferrule_group*> made(static_cast<std::size_t>(size));
  run_all(size, [&](int rank) {
    const auto i = static_cast<std::size_t>(rank);
    made[i] = make_group(rank, fds[i], segments[i]);
    std::mt19937 random(99);  // the same on all ranks
    for (int operation = 0; operation < operations; ++operation) {
      const int kind = static_cast<int>(random() % 6);
      operate(made[i], rank, size, operation, kind, kSizes[random() % std::size(kSizes)]);
    }
  });
  // Now all ranks wait for a message that never comes, and somebody else ends it.
  run_all(size + 1, [&](int rank) {
    if (rank == size) return ferrule_group_abort(made[0], "enough");
    if (size == 1) return;
    char byte = 0;
    const ferrule_status status =
        ferrule_recv(made[static_cast<std::size_t>(rank)], &byte, 1, FERRULE_U8, (rank + 1) % size, kTimeout);
    require(status == FERRULE_ABORTED || status == FERRULE_PEER_LOST, "abort did not end a wait", rank);
  });
  for (ferrule_group* group : made) ferrule_group_destroy(group);
}

void shared(int size, int operations) {
  const std::vector<std::vector<int>> fds = connect_all(size);
  const std::uint8_t token[FERRULE_TOKEN_BYTES] = {4, 5, 6};
  const std::string name = "/ferrule-stress-" + std::to_string(::getpid());
  const auto segment = ferrule::Segment::create(name, token, size);
  ferrule::Segment::unlink(name);
  std::vector<int> indices(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int>(i);
  const ferrule::ReduceFunction add = ferrule::find_reduction(FERRULE_I32, FERRULE_SUM);
  // The sockets live until all threads have ended: to a rank that still waits, one that closes early looks lost.
  std::vector<std::vector<std::unique_ptr<ferrule::ShmChannel>>> all_owned(indices.size());
  run_all(size, [&](int rank) {
    auto& owned = all_owned[static_cast<std::size_t>(rank)];
    std::vector<ferrule::Channel*> channels(indices.size(), nullptr);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const int fd = fds[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer)];
      owned.push_back(std::make_unique<ferrule::ShmChannel>(ferrule::Ends{rank, peer, fd, 1}, *segment, rank, peer));
      channels[static_cast<std::size_t>(peer)] = owned.back().get();
    }
    ferrule::Waiter::Settings settings;
    settings.spin = std::chrono::microseconds(static_cast<int>(kSpinMicroseconds));
    settings.yield = std::chrono::microseconds(static_cast<int>(kYieldMicroseconds));
    ferrule::Waiter waiter(settings, channels, &segment->rank(rank).sleeping);
    ferrule::LocalCollectives local(*segment, rank, indices, channels, waiter);
    std::mt19937 random(7);
    for (int operation = 0; operation < operations; ++operation) {
      const std::size_t count = kSizes[random() % std::size(kSizes)];
      ferrule::Call call;
      call.op = ferrule::Op::all_reduce;
      call.dtype = FERRULE_I32;
      call.sequence = static_cast<std::uint64_t>(operation);
      call.bytes = count * sizeof(std::int32_t);
      waiter.begin(call, kTimeout);
      std::vector<std::int32_t> x = input(count, operation, rank);
      local.all_reduce(call, reinterpret_cast<std::byte*>(x.data()), add);
      for (std::size_t i = 0; i < count; ++i) require(x[i] == sum(i, operation, size), "shared all_reduce", rank);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = argc > 1 ? std::atoi(argv[1]) : 150;
  for (int size = 1; size <= 4; ++size) {
    groups(size, false, operations);
    if (size == 1) continue;
    groups(size, true, operations);
    shared(size, operations);
  }
  std::puts("ok");
  return 0;
}
