// Memory of devices over an emulated adapter. Here it is a file in memory that this process has mapped without any
// right: whatever touches it but the adapter crashes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "group/group.h"
#include "testing.h"
#include "transports/emulated_verbs.h"
#include "transports/tcp/tcp_channel.h"
#include "transports/verbs/verbs_channel.h"
#include "transports/verbs/verbs_endpoint.h"

namespace ferrule {
namespace {

constexpr double kTimeout = 20;
constexpr std::size_t kPage = 4096;

// A device's allocation, exported as a dma-buf.
class Allocation {
 public:
  explicit Allocation(std::size_t bytes)
      : size_((bytes + kPage - 1) / kPage * kPage), fd_(::memfd_create("device", MFD_CLOEXEC)) {
    CHECK(fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(size_)) == 0);
    mapping_ = ::mmap(nullptr, size_, PROT_NONE, MAP_SHARED, fd_, 0);
    CHECK(mapping_ != MAP_FAILED);
  }
  ~Allocation() {
    ::munmap(mapping_, size_);
    ::close(fd_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(mapping_); }
  std::size_t size() const { return size_; }
  void write(std::size_t at, const std::vector<std::byte>& bytes) const {
    CHECK(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at)) == static_cast<ssize_t>(bytes.size()));
  }
  std::vector<std::byte> read(std::size_t at, std::size_t bytes) const {
    std::vector<std::byte> into(bytes);
    CHECK(::pread(fd_, into.data(), bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes));
    return into;
  }
  // The descriptor is closed before the region is used.
  std::shared_ptr<DeviceRegion> registered(const Group& group, int peer) const {
    const int copy = ::dup(fd_);
    auto region = group.register_memory(peer, {copy, 0, size_, address()});
    ::close(copy);
    return region;
  }

 private:
  const std::size_t size_;
  const int fd_;
  void* mapping_;
};

std::vector<std::byte> numbers(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) % 256);
  return all;
}

// Two ranks in this process, joined by the emulated adapter.
struct Ranks {
  explicit Ranks(VerbsType type = VerbsType::rc, bool tcp = false) {
    GroupOptions options[2];
    for (int stream = 0; stream < kStreams; ++stream) {
      const auto sockets = testing::socket_pair();
      std::unique_ptr<Channel> ends[2];
      if (tcp) {
        ends[0] = std::make_unique<TcpChannel>(Ends{0, 1, -1, 1}, std::vector<int>{sockets.first}, 0);
        ends[1] = std::make_unique<TcpChannel>(Ends{1, 0, -1, 1}, std::vector<int>{sockets.second}, 0);
      } else {
        VerbsOptions how{
            .device = "emu0", .port = 1, .type = type, .stream = static_cast<Stream>(stream), .address = {}};
        VerbsEndpoint one(how), other(how);
        const Clock::time_point deadline = Clock::now() + std::chrono::seconds(20);
        one.join(other.local(), deadline);
        other.join(one.local(), deadline);
        std::thread proof([&] { other.prove(deadline); });
        one.prove(deadline);
        proof.join();
        ends[0] = std::make_unique<VerbsChannel>(Ends{0, 1, sockets.first, 1}, one.take_pipe(), one.path());
        ends[1] = std::make_unique<VerbsChannel>(Ends{1, 0, sockets.second, 1}, other.take_pipe(), other.path());
      }
      for (int rank = 0; rank < 2; ++rank) {
        auto& channels = options[rank].channels[static_cast<std::size_t>(stream)];
        channels.resize(2);
        channels[static_cast<std::size_t>(1 - rank)] = std::move(ends[rank]);
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      options[rank].rank = rank;
      options[rank].epoch = 1;
      options[rank].wait = {std::chrono::microseconds(20), std::chrono::microseconds(50), nullptr, nullptr};
      group[rank] = std::make_unique<Group>(std::move(options[rank]));
    }
  }
  ~Ranks() {
    std::thread other([this] { group[1]->close(); });
    group[0]->close();
    other.join();
  }

  std::unique_ptr<Group> group[2];
};

Operation message(Op op, std::size_t bytes) {
  Operation operation;
  operation.op = op;
  operation.dtype = Dtype::u8;
  operation.root = op == Op::send ? 1 : 0;
  operation.count = bytes;
  return operation;
}

Operation of_device(Op op, std::size_t bytes, const DeviceRegion& region, std::uint64_t address) {
  Operation operation = message(op, bytes);
  operation.region = &region;
  operation.device = address;
  return operation;
}

std::shared_ptr<Work> start(Group& group, const Operation& operation, double timeout = kTimeout) {
  std::shared_ptr<Work> work;
  CHECK(group.start(&operation, 1, timeout, work) == Status::ok);
  return work;
}

// Of one message, from rank 0 to rank 1. Between them all memory is of devices, or one end's is the host's.
void moves(std::size_t bytes, bool receiver_first, bool host_sends, bool host_receives) {
  constexpr std::size_t kAt = 13;  // nothing is aligned
  Ranks ranks;
  EmulatedVerbs& adapter = *emulated_verbs();
  const Allocation source(bytes + kAt), target(bytes + 2 * kAt);
  const auto from = source.registered(*ranks.group[0], 1);
  const auto to = target.registered(*ranks.group[1], 0);
  const std::vector<std::byte> given = numbers(bytes, 5), before = numbers(target.size(), 90);
  source.write(kAt, given);
  target.write(0, before);
  std::vector<std::byte> staging(bytes);
  bool placed = false;

  Operation send = of_device(Op::send, bytes, *from, source.address() + kAt);
  if (host_sends) (send = message(Op::send, bytes)).in = given.data();
  Operation receive = of_device(Op::recv, bytes, *to, target.address() + kAt);
  if (host_receives) receive = message(Op::recv, bytes);
  receive.out = staging.data();
  receive.placed = &placed;

  const int sends = adapter.sends, writes = adapter.writes;
  std::shared_ptr<Work> sent, received;
  if (receiver_first) {
    received = start(*ranks.group[1], receive);
    if (!host_receives) CHECK(testing::soon([&] { return adapter.sends > sends; }));  // the offer of the place
    sent = start(*ranks.group[0], send);
  } else {
    sent = start(*ranks.group[0], send);
    CHECK(testing::soon([&] { return adapter.sends > sends; }));
    received = start(*ranks.group[1], receive);
  }
  CHECK(sent->wait(kTimeout) == Status::ok && received->wait(kTimeout) == Status::ok);
  const bool direct = receiver_first && !host_sends && !host_receives;
  CHECK(placed == direct && (adapter.writes > writes) == direct);
  if (placed) {
    CHECK(target.read(kAt, bytes) == given && staging == std::vector<std::byte>(bytes));
    CHECK(target.read(0, kAt) == numbers(kAt, 90) && target.read(kAt + bytes, 1)[0] == before[kAt + bytes]);
  } else {
    CHECK(staging == given && target.read(0, target.size()) == before);
  }
}

void a_send_ends_when_the_adapter_has_read() {
  Ranks ranks;
  const Allocation source(100000);
  const auto from = source.registered(*ranks.group[0], 1);
  emulated_verbs()->hold = true;
  const auto sent = start(*ranks.group[0], of_device(Op::send, 100000, *from, source.address()));
  CHECK(sent->wait(0.1) == Status::pending);
  source.write(0, numbers(100000, 8));  // read when it leaves
  emulated_release();
  CHECK(sent->wait(kTimeout) == Status::ok);
  std::vector<std::byte> got(100000);
  Operation receive = message(Op::recv, got.size());
  receive.out = got.data();
  CHECK(ranks.group[1]->run(&receive, 1, kTimeout) == Status::ok && got == numbers(100000, 8));
}

// Many in a row, some of them offered in time and some not, with messages of the host between.
void many_keep_their_order() {
  Ranks ranks;
  constexpr std::size_t kMany = 60, kBytes = 70000;
  const Allocation source(kMany * kBytes), target(kMany * kBytes);
  const auto from = source.registered(*ranks.group[0], 1);
  const auto to = target.registered(*ranks.group[1], 0);
  std::vector<std::byte> staging(kMany * kBytes);
  const std::vector<std::byte> given = numbers(kMany * kBytes, 3);
  source.write(0, given);
  bool placed[kMany] = {};
  std::thread sender([&] {
    for (std::size_t i = 0; i < kMany; ++i) {
      Operation send = of_device(Op::send, kBytes, *from, source.address() + i * kBytes);
      if (i % 7 == 3) (send = message(Op::send, kBytes)).in = given.data() + i * kBytes;
      CHECK(ranks.group[0]->run(&send, 1, kTimeout) == Status::ok);
    }
  });
  std::vector<std::shared_ptr<Work>> works;
  for (std::size_t i = 0; i < kMany; ++i) {
    Operation receive = of_device(Op::recv, kBytes, *to, target.address() + i * kBytes);
    receive.out = staging.data() + i * kBytes;
    receive.placed = &placed[i];
    works.push_back(start(*ranks.group[1], receive));
    if (i % 5 == 4) CHECK(works.back()->wait(kTimeout) == Status::ok);
  }
  for (std::size_t i = 0; i < kMany; ++i) {
    CHECK(works[i]->wait(kTimeout) == Status::ok);
    const auto begin = given.begin() + static_cast<std::ptrdiff_t>(i * kBytes);
    const std::vector<std::byte> expected(begin, begin + kBytes);
    const auto at = staging.begin() + static_cast<std::ptrdiff_t>(i * kBytes);
    CHECK(placed[i] ? target.read(i * kBytes, kBytes) == expected : std::equal(at, at + kBytes, expected.begin()));
  }
  sender.join();
}

void wrong_sizes_are_told() {
  Ranks ranks;
  const Allocation source(200000), target(200000);
  const auto from = source.registered(*ranks.group[0], 1);
  const auto to = target.registered(*ranks.group[1], 0);
  const std::vector<std::byte> before = target.read(0, target.size());
  source.write(0, numbers(200000, 4));
  std::vector<std::byte> staging(100000);
  bool placed = false;
  Operation receive = of_device(Op::recv, 100000, *to, target.address());
  receive.out = staging.data();
  receive.placed = &placed;
  const int sends = emulated_verbs()->sends;
  const auto received = start(*ranks.group[1], receive);
  CHECK(testing::soon([&] { return emulated_verbs()->sends > sends; }));
  (void)start(*ranks.group[0], of_device(Op::send, 200000, *from, source.address()))->wait(kTimeout);
  CHECK(received->wait(kTimeout) == Status::mismatch && !placed && target.read(0, target.size()) == before);

  Ranks others;
  const Operation beyond = of_device(Op::send, 200000, *from, source.address() + kPage);
  CHECK(others.group[0]->run(&beyond, 1, kTimeout) == Status::invalid);
  Operation of_any = of_device(Op::recv, 100, *to, target.address());
  of_any.root = kAnyRank;
  of_any.placed = &placed;
  CHECK(others.group[1]->run(&of_any, 1, kTimeout) == Status::invalid);
}

// What was offered belongs to the caller again when the receive has failed: the adapter refuses a late write.
void a_failed_receive_gets_no_late_write() {
  Ranks ranks;
  const Allocation source(100000), target(100000);
  const auto from = source.registered(*ranks.group[0], 1);
  const auto to = target.registered(*ranks.group[1], 0);
  source.write(0, numbers(100000, 4));
  std::vector<std::byte> staging(100000);
  bool placed = false;
  Operation receive = of_device(Op::recv, 100000, *to, target.address());
  receive.out = staging.data();
  receive.placed = &placed;
  emulated_verbs()->hold = true;  // so that the sender learns of the offer and not yet of the end
  const int writes = emulated_verbs()->writes;
  CHECK(start(*ranks.group[1], receive, 0.05)->wait(kTimeout) == Status::timeout);
  emulated_release();
  const Operation send = of_device(Op::send, 100000, *from, source.address());
  CHECK(ranks.group[0]->run(&send, 1, kTimeout) != Status::ok);
  CHECK(emulated_verbs()->writes == writes && !placed);
  CHECK(target.read(0, 100000) == std::vector<std::byte>(100000));
}

bool says(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

// A region that another channel has registered.
void strange_regions_are_told() {
  const Allocation source(100000);
  const Ranks owner;
  const auto from = source.registered(*owner.group[0], 1);
  const Operation send = of_device(Op::send, 100000, *from, source.address());
  const auto words = [&](const Ranks& ranks) {
    CHECK(ranks.group[0]->run(&send, 1, kTimeout) == Status::system);
    return ranks.group[0]->failure().message;
  };
  CHECK(says(words(Ranks(VerbsType::rc, true)), "rank 1 is reached by tcp"));
  CHECK(says(words(Ranks(VerbsType::uc)), "needs a queue pair of type RC"));
}

std::string refusal(const Ranks& ranks, const Allocation& memory) {
  try {
    (void)memory.registered(*ranks.group[0], 1);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void refusals_say_why() {
  EmulatedVerbs& adapter = *emulated_verbs();
  const Allocation memory(kPage);
  CHECK(says(refusal(Ranks(VerbsType::rc, true), memory), "rank 1 is reached by tcp"));
  CHECK(says(refusal(Ranks(VerbsType::uc), memory), "needs a queue pair of type RC"));
  {
    Ranks ranks;
    const int held = adapter.dmabufs;
    adapter.most_dmabufs = held + 1;
    auto first = memory.registered(*ranks.group[0], 1);
    CHECK(says(refusal(ranks, memory), "emu0 cannot register a dma-buf of 4096 bytes: Cannot allocate memory"));
    first.reset();
    CHECK(adapter.dmabufs == held && refusal(ranks, memory).empty());  // there is room again
    adapter.most_dmabufs = 1000;
    try {
      (void)ranks.group[0]->register_memory(1, {-1, 0, kPage, memory.address()});
      CHECK(false);
    } catch (const std::runtime_error& error) {
      CHECK(says(error.what(), "Bad file descriptor"));
    }
    CHECK(refusal(ranks, memory).empty());
  }
  Ranks ranks;
  adapter.refuse_dmabuf = EOPNOTSUPP;
  CHECK(says(refusal(ranks, memory), "the driver of emu0 registers no dma-bufs: Operation not supported"));
  const int asked = adapter.asked;
  CHECK(says(refusal(ranks, memory), "the driver of emu0 registers no dma-bufs") && adapter.asked == asked);
  adapter.refuse_dmabuf = 0;
}

}  // namespace
}  // namespace ferrule

int main() {
  using namespace ferrule;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4079}, std::size_t{4080}, std::size_t{300000}}) {
    moves(bytes, true, false, false);
    moves(bytes, false, false, false);
    moves(bytes, true, true, false);
    moves(bytes, true, false, true);
  }
  moves(9 << 20, true, false, false);   // two writes
  moves(9 << 20, false, false, false);  // more than the frames that are under way at a time
  a_send_ends_when_the_adapter_has_read();
  many_keep_their_order();
  wrong_sizes_are_told();
  a_failed_receive_gets_no_late_write();
  strange_regions_are_told();
  refusals_say_why();
  std::puts("ok");
  return 0;
}
