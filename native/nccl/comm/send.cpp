#include "nccl/comm/send.h"

#include <algorithm>

#include "nccl/log.h"

namespace ferrule::nccl {
namespace {

constexpr std::size_t kRequests = kMaxRequests * kMaxReceives;
// One drive moves at most this much, so that NCCL's other comms have their turn.
constexpr std::size_t kTurnBytes = 8 << 20;

}  // namespace

SendComm::SendComm(Joined joined) : Comm(std::move(joined)), requests_(kRequests) {
  for (Send& one : requests_) {
    one.comm = this;
    free_.push_back(&one);
  }
  keeper_->add(this);
}

SendComm::~SendComm() {
  keeper_->remove(this);
  retire();
}

Request* SendComm::want() {
  begin_wait();
  wanting_ = true;
  return nullptr;
}

Request* SendComm::send(const void* data, std::size_t size, int tag) {
  const std::scoped_lock lock(mutex_);
  drive();
  if (groups_.empty()) return want();
  Group& group = groups_.front();
  std::size_t slot = 0;
  while (slot < group.slots.size() && (group.filled[slot] || group.slots[slot].tag != tag)) ++slot;
  if (slot == group.slots.size() || free_.empty()) return want();
  if (size > group.slots[slot].size) {
    throw Error(kInvalidUsage, "a message of " + std::to_string(size) + " bytes was sent where " +
                                   std::to_string(group.slots[slot].size) + " are received");
  }
  wanting_ = false;
  begin_wait();
  Send& one = *free_.back();
  free_.pop_back();
  one.used = true;
  one.done = false;
  one.count = 1;
  one.sizes[0] = size;
  one.head = {group.sequence, static_cast<std::uint32_t>(slot), size};
  one.data = static_cast<const std::byte*>(data);
  one.taken = 0;
  queue_.push_back(&one);
  group.filled[slot] = true;
  if (--group.left == 0) groups_.pop_front();
  drive();
  return &one;
}

void SendComm::release(Request& request) { free_.push_back(static_cast<Send*>(&request)); }

bool SendComm::uses(const std::byte* begin, const std::byte* end) const {
  const auto reads = [&](const Send& one) {
    return one.used && !one.done && one.data < end && begin < one.data + one.sizes[0];
  };
  return std::ranges::any_of(requests_, reads);
}

bool SendComm::pump() {
  bool moved = send_queued();
  if (finish_sent()) moved = true;
  if (groups_.empty() && read_postings()) moved = true;
  return moved;
}

bool SendComm::send_queued() {
  std::size_t total = 0;
  while (!queue_.empty() && total < kTurnBytes) {
    Send& one = *queue_.front();
    const ConstBytes head = bytes_of(one.head);
    const ConstBytes data(one.data, one.sizes[0]);
    const std::size_t of_head = std::min(one.taken, head.size());
    const ConstBytes parts[2] = {head.subspan(of_head), data.subspan(one.taken - of_head)};
    const std::size_t n = channel().try_send(parts);
    if (n == 0) break;
    total += n;
    one.taken += n;
    stream_ += n;
    if (one.taken < head.size() + data.size()) continue;
    one.end = stream_;
    queue_.pop_front();
    sent_.push_back(&one);
  }
  return total != 0;
}

bool SendComm::finish_sent() {
  if (sent_.empty()) return false;
  const std::uint64_t held = channel().held_bytes();
  bool moved = false;
  while (!sent_.empty() && held <= stream_ && sent_.front()->end <= stream_ - held) {
    sent_.front()->done = true;
    sent_.pop_front();
    moved = true;
  }
  return moved;
}

bool SendComm::read_postings() {
  bool moved = false;
  for (;;) {
    const Bytes head = bytes_of(posting_);
    if (got_ < head.size()) {
      const std::size_t n = channel().try_recv(head.subspan(got_));
      got_ += n;
      if (n != 0) moved = true;
      if (got_ < head.size()) return moved;
      if (posting_.sequence != expected_ || posting_.slots == 0 || posting_.slots > kMaxReceives) {
        throw Failure(Status::mismatch, -1, "what the receiver posts makes no sense");
      }
    }
    const Bytes slots = std::as_writable_bytes(std::span(slots_).first(posting_.slots));
    const std::size_t before = got_ - head.size();
    const std::size_t n = channel().try_recv(slots.subspan(before));
    got_ += n;
    if (n != 0) moved = true;
    if (before + n < slots.size()) return moved;
    groups_.push_back({posting_.sequence,
                       posting_.slots,
                       {slots_.begin(), slots_.begin() + posting_.slots},
                       std::vector<bool>(posting_.slots)});
    ++expected_;
    got_ = 0;
  }
}

}  // namespace ferrule::nccl
