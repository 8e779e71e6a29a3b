// Memory of devices on a verbs pipe: the hardware reads and writes it, the processor never does.
#include <algorithm>
#include <cstring>

#include "assertions.h"
#include "transports/verbs/verbs_pipe.h"

namespace ferrule {
namespace {

constexpr std::size_t kTurn = 16;             // frames; see verbs_pipe.cpp
constexpr std::size_t kWriteBytes = 8 << 20;  // so that frames of the other direction get between
constexpr std::size_t kMostGrants = 1024;     // the peer's, of messages that nobody has sent yet

}  // namespace

std::size_t VerbsPipe::write_with(ConstBytes head_bytes, const DeviceBytes& payload) {
  require_reliable();
  if (!can_write()) service();
  DeviceBytes rest = payload;
  std::size_t total = 0;
  for (std::size_t turn = 0; turn < kTurn && head_bytes.size() + rest.size != 0 && can_write(); ++turn) {
    const Frame frame = claim();
    const std::size_t copied = std::min(frame_bytes_, head_bytes.size());
    const std::size_t gathered = std::min(frame_bytes_ - copied, rest.size);
    if (copied != 0) std::memcpy(frame.payload(), head_bytes.data(), copied);
    head(frame, copied + gathered, VerbsFrameKind::data);
    out_.post();
    const ConstBytes front(frame.slot, sizeof(VerbsFrameHeader) + copied);
    if (gathered == 0) {
      queue_->send(front);
    } else {
      if (gathered == rest.size) queue_->report();
      queue_->send_with(front, rest.first(gathered));
      device_until_ = queue_->sent();
    }
    head_bytes = head_bytes.subspan(copied);
    rest = rest.from(gathered);
    total += copied + gathered;
  }
  return total;
}

std::size_t VerbsPipe::place(const DeviceBytes& payload, const Grant& grant, std::size_t offset) {
  require_reliable();
  FERRULE_ASSERT(offset + payload.size <= grant.bytes);
  if (!queue_->has_room()) service();
  if (broken() || !queue_->has_room()) return 0;
  const DeviceBytes piece = payload.first(std::min(payload.size, kWriteBytes));
  if (piece.size == payload.size) queue_->report();
  queue_->write(piece, grant.address + offset, grant.key);
  device_until_ = queue_->sent();
  return piece.size;
}

bool VerbsPipe::holds_device_memory() {
  if (queue_->completed() < device_until_) service();
  return queue_->completed() < device_until_;
}

// A region of another pipe may be given.
void VerbsPipe::require_reliable() const {
  if (!reliable()) throw std::runtime_error("memory of devices needs a queue pair of type RC");
}

void VerbsPipe::grant(const Grant& grant) {
  require_reliable();
  grants_to_send_.push_back(grant);
  send_grants();
}

void VerbsPipe::send_grants() {
  for (; !grants_to_send_.empty() && can_write(); grants_to_send_.pop_front()) {
    const Frame frame = claim();
    std::memcpy(frame.payload(), &grants_to_send_.front(), sizeof(Grant));
    head(frame, sizeof(Grant), VerbsFrameKind::grant);
    post(out_.post());
  }
}

void VerbsPipe::heed_grant(const Arrival& arrival) {
  Grant grant;
  if (arrival.bytes != sizeof(VerbsFrameHeader) + sizeof grant) throw FrameError("granted a place of no known form");
  std::memcpy(&grant, receive_slot(arrival.slot) + sizeof(VerbsFrameHeader), sizeof grant);
  recycle(arrival.slot, true);
  if (grants_.size() == kMostGrants) grants_.pop_front();
  grants_.push_back(grant);
}

std::optional<Grant> VerbsPipe::take_grant(std::uint64_t sequence) {
  while (!grants_.empty() && grants_.front().sequence < sequence) grants_.pop_front();
  if (grants_.empty() || grants_.front().sequence != sequence) return std::nullopt;
  const Grant grant = grants_.front();
  grants_.pop_front();
  return grant;
}

}  // namespace ferrule
