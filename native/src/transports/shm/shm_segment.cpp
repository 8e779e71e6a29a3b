#include "transports/shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>

#include "assertions.h"

namespace ferrule {
namespace {

constexpr std::uint64_t kMagic = 0x32656c7572726566;  // "ferrule2": another layout gets another number

struct SegmentHeader {
  std::uint64_t magic;
  std::uint64_t ranks;
  std::uint8_t token[kTokenBytes];
};

constexpr std::size_t kHeaderBytes = 4096;

// Messages may be sent at least 256 KiB ahead; few ranks get longer rings because there the memory is cheap.
std::size_t ring_capacity(int ranks, Stream stream) {
  if (ranks <= 4) return std::size_t{1} << 20;
  return std::size_t{stream == Stream::messages ? 256u : 128u} << 10;
}

std::size_t stream_bytes(int ranks, Stream stream) {
  const auto n = static_cast<std::size_t>(ranks);
  return n * (n - 1) * (sizeof(RingHeader) + ring_capacity(ranks, stream));
}

std::size_t segment_bytes(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return kHeaderBytes + n * sizeof(RankBlock) + stream_bytes(ranks, Stream::collectives) +
         stream_bytes(ranks, Stream::messages);
}

[[noreturn]] void refuse(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::strerror(error));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

int open_place(const std::string& place) {
#ifdef __linux__
  return ::open(place.c_str(), O_RDWR | O_CLOEXEC);
#else
  return ::shm_open(place.c_str(), O_RDWR, 0);
#endif
}

void* map(int fd, std::size_t bytes) {
  int flags = MAP_SHARED;
#ifdef MAP_POPULATE
  flags |= MAP_POPULATE;  // page faults now rather than during the first collectives
#endif
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) refuse("cannot map the shared-memory segment", errno);
  return base;
}

void reserve(int fd, std::size_t bytes) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) refuse("cannot size the shared-memory segment", errno);
#ifdef __linux__
  // Without this a want of memory would end the process by SIGBUS at some later write.
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != 0) refuse("there is no room for " + std::to_string(bytes >> 10) + " KiB of shared memory", error);
#endif
}

}  // namespace

#ifdef __linux__
Segment::Shelter Segment::Shelter::make() {
  Shelter made;
  made.fd = ::memfd_create("ferrule", MFD_CLOEXEC);
  if (made.fd < 0) refuse("cannot create shared memory", errno);
  made.place = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(made.fd);
  return made;
}

void Segment::Shelter::hide() {
  if (fd >= 0) ::close(std::exchange(fd, -1));
  place.clear();
}
#else
Segment::Shelter Segment::Shelter::make() {
  std::random_device random;
  Shelter made;
  made.place = "/ferrule-" + std::to_string(random()) + "-" + std::to_string(random());
  made.fd = ::shm_open(made.place.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (made.fd < 0) {
    const int error = errno;
    const std::string name = std::exchange(made.place, "");
    refuse("cannot create shared memory " + name, error);
  }
  return made;
}

void Segment::Shelter::hide() {
  if (fd >= 0) ::close(std::exchange(fd, -1));
  if (!place.empty()) ::shm_unlink(place.c_str());
  place.clear();
}
#endif

std::unique_ptr<Segment> Segment::create(const std::uint8_t* token, int ranks) {
  Shelter shelter = Shelter::make();
  const std::size_t bytes = segment_bytes(ranks);
  reserve(shelter.fd, bytes);
  void* const base = map(shelter.fd, bytes);
  // Fresh pages are zero, which is the right start for every flag and counter.
  auto* header = static_cast<SegmentHeader*>(base);
  header->ranks = static_cast<std::uint64_t>(ranks);
  std::memcpy(header->token, token, sizeof header->token);
  header->magic = kMagic;
  return std::unique_ptr<Segment>(new Segment(base, bytes, ranks, std::move(shelter)));
}

std::unique_ptr<Segment> Segment::open(const std::string& place, const std::uint8_t* token, int ranks) {
  const Descriptor file{open_place(place)};
  if (file.fd < 0) refuse("cannot open shared memory " + place, errno);
  const std::size_t bytes = segment_bytes(ranks);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) refuse("cannot examine shared memory " + place, errno);
  if (static_cast<std::size_t>(status.st_size) < bytes || status.st_uid != ::geteuid()) {
    throw std::runtime_error("shared memory " + place + " is not ours");
  }
  void* base = map(file.fd, bytes);
  auto segment = std::unique_ptr<Segment>(new Segment(base, bytes, ranks, {}));
  const auto* header = static_cast<const SegmentHeader*>(base);
  if (header->magic != kMagic || header->ranks != static_cast<std::uint64_t>(ranks) ||
      std::memcmp(header->token, token, sizeof header->token) != 0) {
    throw std::runtime_error("shared memory " + place + " belongs to another group");
  }
  return segment;
}

Segment::~Segment() { ::munmap(base_, bytes_); }

RankBlock& Segment::rank(int index) const {
  FERRULE_ASSERT(index >= 0 && index < ranks_);
  return reinterpret_cast<RankBlock*>(base_ + kHeaderBytes)[index];
}

std::atomic<std::uint32_t>& Segment::sleeping(int index, Stream stream) const {
  return rank(index).sleeping[static_cast<std::size_t>(stream)].value;
}

std::size_t Segment::ring_bytes(Stream stream) const { return ring_capacity(ranks_, stream); }

std::size_t Segment::ring_offset(Stream stream, int from, int to) const {
  FERRULE_ASSERT(from >= 0 && from < ranks_ && to >= 0 && to < ranks_ && from != to);
  const auto n = static_cast<std::size_t>(ranks_);
  const auto pair = static_cast<std::size_t>(from) * (n - 1) + static_cast<std::size_t>(to < from ? to : to - 1);
  const std::size_t start = stream == Stream::collectives ? 0 : stream_bytes(ranks_, Stream::collectives);
  return kHeaderBytes + n * sizeof(RankBlock) + start + pair * (sizeof(RingHeader) + ring_bytes(stream));
}

RingHeader& Segment::ring(Stream stream, int from, int to) const {
  return *reinterpret_cast<RingHeader*>(base_ + ring_offset(stream, from, to));
}

std::byte* Segment::ring_data(Stream stream, int from, int to) const {
  return base_ + ring_offset(stream, from, to) + sizeof(RingHeader);
}

}  // namespace ferrule
