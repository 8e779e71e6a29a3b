// Ranks as threads of one process, doing random operations and checking every result: made for the sanitizers.
//
//   cmake -S native -B build/tsan -DFERRULE_PYTHON=OFF -DFERRULE_TESTS=ON -DFERRULE_SANITIZE=thread
//
// "groups" runs whole groups, each with its own mapping of the segment. "shared" runs the
// collectives over one mapping: only then can the thread sanitizer see that two ranks touch the same memory.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collectives/local.h"
#include "group/group.h"
#include "transports/shm/shm_channel.h"
#include "transports/tcp/tcp_channel.h"

namespace {

using ferrule::Algorithm;
using ferrule::Dtype;
using ferrule::Group;
using ferrule::GroupOptions;
using ferrule::Op;
using ferrule::Operation;
using ferrule::Reduction;
using ferrule::Status;

constexpr double kTimeout = 60;
constexpr std::chrono::microseconds kSpin{20};
constexpr std::chrono::microseconds kYield{50};
constexpr std::size_t kSizes[] = {0, 1, 3, 16, 1000, 16384, 16385, 70000, 150001, 400003, 2700001};

constexpr std::size_t kMostOfMany = 150001;  // with many ranks the longest arrays only take long

void require(bool condition, const char* what, int rank) {
  if (condition) return;
  std::fprintf(stderr, "rank %d: %s\n", rank, what);
  std::abort();
}

std::vector<std::vector<int>> connect_all(int size) {
  std::vector<std::vector<int>> fds(static_cast<std::size_t>(size),
                                    std::vector<int>(static_cast<std::size_t>(size), -1));
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
std::int32_t value(std::size_t i, int operation) {
  return static_cast<std::int32_t>(i * 7 + static_cast<std::size_t>(operation));
}

std::vector<std::int32_t> input(std::size_t count, int operation, int rank) {
  std::vector<std::int32_t> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = value(i, operation) + rank;
  return x;
}

std::int32_t sum(std::size_t i, int operation, int size) { return value(i, operation) * size + size * (size - 1) / 2; }

Status run(Group& group, Op op, const void* in, void* out, std::size_t count, int root = -1) {
  Operation operation{};
  operation.op = op;
  operation.dtype = Dtype::i32;
  operation.reduction = Reduction::sum;
  operation.root = root;
  operation.in = in;
  operation.out = out;
  operation.count = count;
  return group.run(&operation, 1, kTimeout);
}

void operate(Group& group, int rank, int size, int operation, int kind, std::size_t count) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::int32_t> x = input(count, operation, rank);
  Status status = Status::ok;
  if (kind == 0) {
    status = run(group, Op::all_reduce, nullptr, x.data(), count);
    for (std::size_t i = 0; i < count; ++i) require(x[i] == sum(i, operation, size), "all_reduce", rank);
  } else if (kind == 1) {
    std::vector<std::int32_t> out(count * n);
    status = run(group, Op::all_gather, x.data(), out.data(), count);
    for (std::size_t i = 0; i < out.size(); ++i) {
      require(out[i] == value(i % count, operation) + static_cast<int>(i / count), "all_gather", rank);
    }
  } else if (kind == 2) {
    const std::vector<std::int32_t> in = input(count * n, operation, rank);
    status = run(group, Op::reduce_scatter, in.data(), x.data(), count);
    const std::size_t begin = static_cast<std::size_t>(rank) * count;
    for (std::size_t i = 0; i < count; ++i) require(x[i] == sum(begin + i, operation, size), "reduce_scatter", rank);
  } else if (kind == 3) {
    const int root = operation % size;
    status = run(group, Op::broadcast, nullptr, x.data(), count, root);
    for (std::size_t i = 0; i < count; ++i) require(x[i] == value(i, operation) + root, "broadcast", rank);
  } else if (kind == 6) {
    const int root = operation % size;
    std::vector<std::int32_t> out(count);
    status = run(group, Op::reduce, x.data(), out.data(), count, root);
    for (std::size_t i = 0; i < count && rank == root; ++i) require(out[i] == sum(i, operation, size), "reduce", rank);
  } else if (kind == 7) {
    const std::vector<std::int32_t> in = input(count * n, operation, rank);
    std::vector<std::int32_t> out(count * n);
    status = run(group, Op::all_to_all, in.data(), out.data(), count);
    const std::size_t begin = static_cast<std::size_t>(rank) * count;
    for (std::size_t i = 0; i < out.size(); ++i) {
      require(out[i] == value(begin + i % count, operation) + static_cast<int>(i / count), "all_to_all", rank);
    }
  } else if (kind == 4 && size > 1) {
    const int before = (rank + size - 1) % size;
    if (rank == 0) {
      status = run(group, Op::send, x.data(), nullptr, count, (rank + 1) % size);
      if (status == Status::ok) status = run(group, Op::recv, nullptr, x.data(), count, before);
    } else {
      std::vector<std::int32_t> y(count);
      status = run(group, Op::recv, nullptr, y.data(), count, before);
      if (status == Status::ok) {
        status = run(group, Op::send, x.data(), nullptr, count, (rank + 1) % size);
      }
      x = y;
    }
    for (std::size_t i = 0; i < count; ++i) require(x[i] == value(i, operation) + before, "recv", rank);
  } else {
    status = run(group, Op::barrier, nullptr, nullptr, 0);
  }
  require(status == Status::ok, "an operation failed", rank);
}

void run_all(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// A group's collectives by one algorithm, or -1 for what it takes by itself.
struct OneAlgorithm : ferrule::Strategy {
  OneAlgorithm(int algorithm, int size, unsigned seed) {
    if (algorithm < 0) return;
    for (int op = static_cast<int>(Op::all_reduce); op <= static_cast<int>(Op::reduce); ++op) {
      decisions.push_back({static_cast<Op>(op), ~std::uint64_t{0}, static_cast<Algorithm>(algorithm)});
    }
    std::mt19937 random(seed);
    for (int rank = 0; rank < size; ++rank) ring.push_back(rank);
    std::shuffle(ring.begin(), ring.end(), random);
    // Every rank's parent is one that stands before it in some order.
    tree.assign(static_cast<std::size_t>(size), -1);
    for (std::size_t i = 1; i < ring.size(); ++i) tree[static_cast<std::size_t>(ring[i])] = ring[random() % i];
  }
};

std::unique_ptr<Group> make_group(int rank, const std::vector<int> (&fds)[2], std::unique_ptr<ferrule::Segment> segment,
                                  const ferrule::Strategy& strategy) {
  const int size = static_cast<int>(fds[0].size());
  GroupOptions options;
  for (std::size_t stream = 0; stream < options.channels.size(); ++stream) {
    for (int peer = 0; peer < size; ++peer) {
      auto& made = options.channels[stream].emplace_back();
      const int fd = fds[stream][static_cast<std::size_t>(peer)];
      if (peer == rank) continue;
      if (segment == nullptr) {
        made = std::make_unique<ferrule::TcpChannel>(ferrule::Ends{rank, peer, -1, 4711}, std::span(&fd, 1));
      } else {
        made = std::make_unique<ferrule::ShmChannel>(ferrule::Ends{rank, peer, fd, 4711}, *segment,
                                                     static_cast<ferrule::Stream>(stream), rank, peer);
      }
    }
    if (segment != nullptr && stream == 0) {
      for (int local = 0; local < size; ++local) options.local_index.push_back(local);
    }
  }
  options.rank = rank;
  options.epoch = 4711;
  options.segment = std::move(segment);
  options.wait = {kSpin, kYield, nullptr, nullptr};
  options.strategy = strategy;
  return std::make_unique<Group>(std::move(options));
}

void groups(int size, bool shared_memory, int operations, int algorithm = -1) {
  const OneAlgorithm strategy(algorithm, size, static_cast<unsigned>(size));
  const std::vector<std::vector<int>> streams[2] = {connect_all(size), connect_all(size)};
  const std::uint8_t token[ferrule::kTokenBytes] = {1, 2, 3};
  std::vector<std::unique_ptr<ferrule::Segment>> segments(static_cast<std::size_t>(size));
  if (shared_memory) {
    segments[0] = ferrule::Segment::create(token, size);
    for (std::size_t i = 1; i < segments.size(); ++i) {
      segments[i] = ferrule::Segment::open(segments[0]->place(), token, size);
    }
    segments[0]->hide();
  }
  std::vector<std::unique_ptr<Group>> made(static_cast<std::size_t>(size));
  run_all(size, [&](int rank) {
    const auto i = static_cast<std::size_t>(rank);
    made[i] = make_group(rank, {streams[0][i], streams[1][i]}, std::move(segments[i]), strategy);
    std::mt19937 random(16298);  // the same on all ranks: the first eight are one of each kind, and one of them long
    for (int operation = 0; operation < operations; ++operation) {
      const int kind = static_cast<int>(random() % 8);
      const std::size_t count = kSizes[random() % std::size(kSizes)];
      operate(*made[i], rank, size, operation, kind, size > 4 ? std::min(count, kMostOfMany) : count);
    }
  });
  // Now all ranks wait for a message that never comes, and another thread ends it.
  run_all(size + 1, [&](int rank) {
    if (rank == size) return made[0]->abort("enough");
    if (size == 1) return;
    std::int32_t word = 0;
    const Status status = run(*made[static_cast<std::size_t>(rank)], Op::recv, nullptr, &word, 1, (rank + 1) % size);
    require(status == Status::aborted || status == Status::peer_lost, "abort did not end a wait", rank);
  });
}

void shared(int size, int operations) {
  const std::vector<std::vector<int>> fds = connect_all(size);
  const std::uint8_t token[ferrule::kTokenBytes] = {4, 5, 6};
  const auto segment = ferrule::Segment::create(token, size);
  std::vector<int> indices(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int>(i);
  const ferrule::ReduceFunction add = ferrule::find_reduction(Dtype::i32, Reduction::sum);
  // The sockets live until all threads have ended: to a rank that still waits, one that closes early looks lost.
  std::vector<std::vector<std::unique_ptr<ferrule::ShmChannel>>> all_owned(indices.size());
  run_all(size, [&](int rank) {
    auto& owned = all_owned[static_cast<std::size_t>(rank)];
    std::vector<ferrule::Channel*> channels(indices.size(), nullptr);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const int fd = fds[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer)];
      owned.push_back(std::make_unique<ferrule::ShmChannel>(ferrule::Ends{rank, peer, fd, 1}, *segment,
                                                            ferrule::Stream::collectives, rank, peer));
      channels[static_cast<std::size_t>(peer)] = owned.back().get();
    }
    ferrule::Waiter::Settings settings;
    settings.spin = kSpin;
    settings.yield = kYield;
    ferrule::Waiter waiter(settings, channels, &segment->sleeping(rank, ferrule::Stream::collectives));
    ferrule::LocalCollectives local(*segment, rank, indices, channels, waiter);
    std::mt19937 random(7);
    for (int operation = 0; operation < operations; ++operation) {
      const std::size_t count = kSizes[random() % std::size(kSizes)];
      ferrule::Call call;
      call.op = ferrule::Op::all_reduce;
      call.dtype = static_cast<std::uint8_t>(Dtype::i32);
      call.sequence = static_cast<std::uint64_t>(operation);
      call.bytes = count * sizeof(std::int32_t);
      waiter.begin(call, ferrule::Clock::now(), ferrule::Clock::now() + std::chrono::seconds(60));
      std::vector<std::int32_t> x = input(count, operation, rank);
      local.all_reduce(call, reinterpret_cast<std::byte*>(x.data()), add);
      for (std::size_t i = 0; i < count; ++i) require(x[i] == sum(i, operation, size), "shared all_reduce", rank);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = argc > 1 ? std::atoi(argv[1]) : 150;
  const int most = argc > 2 ? std::atoi(argv[2]) : 9;  // ranks
  for (int size = 2; size <= most; size += size < 5 ? 1 : 2) {
    for (const Algorithm algorithm : {Algorithm::doubling, Algorithm::tree, Algorithm::ring}) {
      groups(size, false, operations / 3, static_cast<int>(algorithm));
    }
  }
  for (int size = 1; size <= 4; ++size) {
    groups(size, false, operations);
    if (size == 1) continue;
    groups(size, true, operations);
    shared(size, operations);
  }
  std::puts("ok");
  return 0;
}
