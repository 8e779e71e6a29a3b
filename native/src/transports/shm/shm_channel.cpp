#include "transports/shm/shm_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "assertions.h"
#include "transports/socket.h"

namespace ferrule {
namespace {

// Long messages are published piece by piece, so that the reader copies while the writer still writes.
constexpr std::size_t kPieceBytes = 64 << 10;

}  // namespace

ShmChannel::ShmChannel(const Ends& ends, const Segment& segment, Stream stream, int mine, int theirs)
    : Channel(ends),
      peer_sleeping_(segment.sleeping(theirs, stream)),
      out_(segment.ring(stream, mine, theirs)),
      out_data_(segment.ring_data(stream, mine, theirs)),
      in_(segment.ring(stream, theirs, mine)),
      in_data_(segment.ring_data(stream, theirs, mine)),
      capacity_(segment.ring_bytes(stream)) {}

void ShmChannel::notify() {
  // Half of a handshake whose other half is in Waiter::arm: we store data, then look whether the peer sleeps; it
  // says that it sleeps, then looks for data. With a full fence between both, one of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (peer_sleeping_.load(std::memory_order_relaxed) == 0) return;
  if (peer_sleeping_.exchange(0, std::memory_order_acq_rel) == 0) return;  // another thread rings
  const std::byte bell{0};
  // A full socket means that bells are there already; a broken one shows itself when we wait for the peer.
  (void)::send(fd_, &bell, 1, kSendFlags);
}

std::size_t ShmChannel::write(ConstBytes from) {
  std::size_t room = capacity_ - static_cast<std::size_t>(head_ - seen_tail_);
  if (room < from.size()) {
    seen_tail_ = out_.tail.load(std::memory_order_acquire);
    room = capacity_ - static_cast<std::size_t>(head_ - seen_tail_);
  }
  FERRULE_ASSERT(room <= capacity_);
  const std::size_t size = std::min({from.size(), room, kPieceBytes});
  const std::size_t at = static_cast<std::size_t>(head_) & (capacity_ - 1);
  const std::size_t first = std::min(size, capacity_ - at);
  std::memcpy(out_data_ + at, from.data(), first);
  std::memcpy(out_data_, from.data() + first, size - first);
  head_ += size;
  return size;
}

std::size_t ShmChannel::try_send(std::span<const ConstBytes> parts) {
  std::size_t total = 0;
  for (const ConstBytes& part : parts) {
    if (part.empty()) continue;
    const std::size_t n = write(part);
    total += n;
    if (n < part.size()) break;
  }
  if (total == 0) return 0;
  out_.head.store(head_, std::memory_order_release);
  notify();
  return total;
}

std::size_t ShmChannel::try_recv(Bytes into) {
  std::size_t there = static_cast<std::size_t>(seen_head_ - tail_);
  if (there < into.size()) {
    seen_head_ = in_.head.load(std::memory_order_acquire);
    there = static_cast<std::size_t>(seen_head_ - tail_);
  }
  FERRULE_ASSERT(there <= capacity_);
  const std::size_t size = std::min({into.size(), there, kPieceBytes});
  if (size == 0) return 0;
  const std::size_t at = static_cast<std::size_t>(tail_) & (capacity_ - 1);
  const std::size_t first = std::min(size, capacity_ - at);
  std::memcpy(into.data(), in_data_ + at, first);
  std::memcpy(into.data() + first, in_data_, size - first);
  tail_ += size;
  in_.tail.store(tail_, std::memory_order_release);
  notify();  // the writer may sleep because the ring was full
  return size;
}

void ShmChannel::add_polls(Wanted, std::vector<pollfd>& into) const {
  into.push_back({fd_, static_cast<short>(POLLIN | kHangup), 0});
}

void ShmChannel::on_poll(const pollfd&) {
  drain();
  if (gone_ && !departed()) throw loss();
}

}  // namespace ferrule
