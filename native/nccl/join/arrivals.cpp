#include "nccl/join/arrivals.h"

#include <algorithm>

#include "nccl/log.h"
#include "transports/shm/shm_channel.h"
#include "transports/tcp/tcp_channel.h"

namespace ferrule::nccl {
namespace {

// How long a link waits for its first comm, and a comm for its other rails.
constexpr std::chrono::seconds kPatience{20};
constexpr int kRank = 1;  // the connector is rank 0

}  // namespace

Answer Arrivals::check(const Hello& hello) {
  if (hello.rails == 0 || hello.rails > kMaxRails || hello.rail >= hello.rails) return Answer::no_listener;
  if (hello.purpose == Purpose::beats) return Answer::welcome;
  if (hello.link != kNone && !Links::own().find(hello.link)) return Answer::no_link;
  if (hello.purpose == Purpose::tcp) return Answer::welcome;
  if (hello.purpose != Purpose::shm) return Answer::no_listener;
  const std::string place(hello.place.data(), ::strnlen(hello.place.data(), hello.place.size()));
  try {
    segment_ = Segment::open(place, hello.token.data(), 2);
  } catch (const std::runtime_error& error) {
    inform(error.what());
    return Answer::no_memory;
  }
  return Answer::welcome;
}

std::unique_ptr<ReceiveComm> Arrivals::take(const Hello& hello, Descriptor fd, const std::string& name) {
  if (hello.purpose == Purpose::beats) {
    add_beats(hello, std::move(fd), name);
    return nullptr;
  }
  const std::uint64_t epoch = epoch_of(hello.comm);
  if (hello.purpose == Purpose::shm) {
    const Ends ends{kRank, 0, fd.release(), epoch};
    return finish(hello, name, std::make_unique<ShmChannel>(ends, *segment_, Stream::messages, kRank, 0));
  }
  Arriving& comm = arriving_[hello.comm];
  if (comm.rails.empty()) {
    comm.rails.resize(hello.rails);
    comm.missing = hello.rails;
    comm.until = Clock::now() + kPatience;
  }
  if (hello.rails != comm.rails.size() || comm.rails[hello.rail].valid()) return nullptr;
  comm.rails[hello.rail] = std::move(fd);
  if (--comm.missing != 0) return nullptr;
  std::vector<int> fds;
  for (Descriptor& rail : comm.rails) fds.push_back(rail.release());
  arriving_.erase(hello.comm);
  return finish(hello, name, std::make_unique<TcpChannel>(Ends{kRank, 0, -1, epoch}, fds));
}

std::unique_ptr<ReceiveComm> Arrivals::finish(const Hello& hello, const std::string& name,
                                              std::unique_ptr<Channel> channel) {
  Joined joined;
  joined.id = hello.comm;
  joined.peer = "the process at " + name;
  joined.channel = std::move(channel);
  joined.timeout = settings_.timeout;
  if (hello.purpose == Purpose::shm) joined.segment = std::move(segment_);
  if (hello.link != kNone) {
    joined.link = Links::own().find(hello.link);
    if (!joined.link) return nullptr;  // it has just ended, with the connector
  }
  return std::make_unique<ReceiveComm>(std::move(joined));
}

void Arrivals::add_beats(const Hello& hello, Descriptor fd, const std::string& name) {
  std::shared_ptr<PeerLink> link = Links::own().find(hello.link);
  if (!link) {
    link = std::make_shared<PeerLink>(hello.link, kRank, settings_.silence);
    links_.push_back({link, Clock::now() + kPatience});
    Links::own().add(link);
  }
  link->add(hello.rail, fd.release(), name);
}

void Arrivals::sweep(Clock::time_point now) {
  std::erase_if(links_, [&](const Held& one) { return now >= one.until; });
  std::erase_if(arriving_, [&](const auto& one) { return now >= one.second.until; });
}

}  // namespace ferrule::nccl
