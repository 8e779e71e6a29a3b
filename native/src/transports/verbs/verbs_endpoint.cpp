#include "transports/verbs/verbs_endpoint.h"

#include <poll.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace ferrule {
namespace {

// Collectives are few and long; of messages, many small ones may be sent ahead of a receiver that comes later, and
// each takes a slot.
constexpr PipeShape kCollectives{64, 8 << 10};
constexpr PipeShape kMessages{256, 4 << 10};

constexpr std::uint32_t kPsnMask = 0xffffff;
constexpr std::chrono::milliseconds kGreetAgain{50};

}  // namespace

VerbsEndpoint::VerbsEndpoint(const VerbsOptions& options)
    : path_(options.device),
      connector_(options.address.empty() ? make_direct_connector(options) : make_managed_connector(options)) {
  const ibv_qp_type type = options.type == VerbsType::uc ? IBV_QPT_UC : IBV_QPT_RC;
  auto made = std::make_unique<IbvQueuePair>(connector_, options.device, type,
                                             options.stream == Stream::messages ? kMessages : kCollectives);
  std::random_device random;
  local_.type = static_cast<std::uint8_t>(type);
  local_.psn = random() & kPsnMask;
  local_.token = random();
  local_.slots = made->shape().slots;
  local_.slot_bytes = made->shape().slot_bytes;
  queue_pair_ = made->handle();
  connector_->describe(*queue_pair_, local_);
  const PipeEnd mine{made->shape(), local_.token};
  pipe_ = std::make_unique<VerbsPipe>(std::move(made), mine);
  if (pipe_->broken()) throw std::runtime_error(pipe_->fault());
}

void VerbsEndpoint::join(const VerbsDescription& theirs, Clock::time_point deadline) {
  const bool fits = theirs.version == local_.version && theirs.type == local_.type && theirs.slots != 0 &&
                    theirs.slot_bytes > sizeof(VerbsFrameHeader);
  if (!fits) throw std::runtime_error("the other end's queue pair is of another kind");
  connector_->join(*queue_pair_, local_, theirs, deadline);
  pipe_->meet({{theirs.slots, theirs.slot_bytes}, theirs.token});
}

void VerbsEndpoint::prove(Clock::time_point deadline) {
  Clock::time_point next{};
  for (Clock::time_point now = Clock::now(); !pipe_->greeted(); now = Clock::now()) {
    if (pipe_->broken()) throw std::runtime_error(path_ + " does not reach the other end: " + pipe_->fault());
    if (now >= deadline) {
      throw std::runtime_error("nothing arrives on " + path_ +
                               "; do its addresses, cable and firewall let it through?");
    }
    if (next == Clock::time_point{} || (!pipe_->reliable() && now >= next)) {
      pipe_->greet();
      next = now + kGreetAgain;
    }
    if (pipe_->prepare_sleep(true) == Clock::duration::zero()) continue;
    pollfd bell{pipe_->event_fd(), POLLIN, 0};
    const int nap = poll_milliseconds(std::min<Clock::duration>(deadline - now, kGreetAgain));
    if (::poll(&bell, 1, nap) > 0) pipe_->take_events();
  }
}

}  // namespace ferrule
