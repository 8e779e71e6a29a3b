#include "nccl/comm/receive.h"

#include <algorithm>

#include "nccl/log.h"

namespace ferrule::nccl {
namespace {

constexpr std::size_t kTurnBytes = 8 << 20;

}  // namespace

ReceiveComm::ReceiveComm(Joined joined) : Comm(std::move(joined)), requests_(kMaxRequests) {
  for (Receive& one : requests_) {
    one.comm = this;
    free_.push_back(&one);
  }
  keeper_->add(this);
}

ReceiveComm::~ReceiveComm() {
  keeper_->remove(this);
  retire();
}

Request* ReceiveComm::receive(std::span<const Place> places) {
  if (places.empty() || places.size() > kMaxReceives) {
    throw Error(kInternalError, "a group of " + std::to_string(places.size()) + " receives; there may be 1 to 8");
  }
  const std::scoped_lock lock(mutex_);
  if (free_.empty()) {
    drive();
    return nullptr;
  }
  begin_wait();
  Receive& one = *free_.back();
  free_.pop_back();
  one.used = true;
  one.done = false;
  one.count = one.left = places.size();
  one.sequence = next_++;
  one.filled.fill(false);
  one.sizes.fill(0);
  Posting posting{one.sequence, static_cast<std::uint32_t>(places.size())};
  std::ranges::copy(bytes_of(posting), std::back_inserter(postings_));
  for (std::size_t i = 0; i < places.size(); ++i) {
    one.data[i] = static_cast<std::byte*>(places[i].data);
    one.room[i] = places[i].size;
    Slot slot{places[i].tag, 0, places[i].size};
    std::ranges::copy(bytes_of(slot), std::back_inserter(postings_));
  }
  open_.push_back(&one);
  drive();
  return &one;
}

void ReceiveComm::release(Request& request) { free_.push_back(static_cast<Receive*>(&request)); }

bool ReceiveComm::uses(const std::byte* begin, const std::byte* end) const {
  const auto writes = [&](const Receive* one) {
    for (std::size_t i = 0; i < one->count; ++i) {
      if (one->data[i] < end && begin < one->data[i] + one->room[i]) return true;
    }
    return false;
  };
  return std::ranges::any_of(open_, writes);
}

bool ReceiveComm::post() {
  if (postings_.empty()) return false;
  const ConstBytes all(postings_);
  const std::size_t n = channel().try_send(std::span(&all, 1));
  postings_.erase(postings_.begin(), postings_.begin() + static_cast<std::ptrdiff_t>(n));
  return n != 0;
}

bool ReceiveComm::pump() {
  bool moved = post();
  for (std::size_t total = 0; !open_.empty() && total < kTurnBytes;) {
    const Bytes head = bytes_of(head_);
    Bytes into = head.subspan(std::min(got_, head.size()));
    if (into.empty()) into = Bytes(open_.front()->data[head_.slot], head_.size).subspan(got_ - head.size());
    const std::size_t n = channel().try_recv(into);
    if (n == 0) break;
    moved = true;
    total += n;
    got_ += n;
    if (got_ == head.size()) begin_message();
    if (got_ >= head.size() && got_ == head.size() + head_.size) end_message();
  }
  return moved;
}

void ReceiveComm::begin_message() {
  const Receive& first = *open_.front();
  const bool sense = head_.sequence == first.sequence && head_.slot < first.count && !first.filled[head_.slot] &&
                     head_.size <= first.room[head_.slot];
  if (!sense) throw Failure(Status::mismatch, -1, "what the sender sends is for no receive that was posted");
}

void ReceiveComm::end_message() {
  Receive& first = *open_.front();
  first.filled[head_.slot] = true;
  first.sizes[head_.slot] = head_.size;
  got_ = 0;
  if (--first.left != 0) return;
  first.done = true;
  open_.pop_front();
}

}  // namespace ferrule::nccl
