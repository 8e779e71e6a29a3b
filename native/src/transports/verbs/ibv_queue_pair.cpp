#include "transports/verbs/ibv_queue_pair.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace ferrule {
namespace {

constexpr std::uint64_t kSendMark = std::uint64_t{1} << 63;  // in a work request's id: a send
constexpr std::uint64_t kReportEvery = 16;
constexpr std::uint32_t kInlineBytes = 220;
constexpr std::uint32_t kFewestSlots = 8;
constexpr std::uint32_t kMostSlotBytes = 32 << 10;
constexpr std::uint32_t kSoftRoce = 0xffffff;  // its vendor
constexpr std::uint32_t kOnePacket = 1024;     // goes into one on any Ethernet
constexpr std::size_t kPostAtOnce = 16;
constexpr int kMostCompletions = 16;

// Frames sent again and small frames without data find room beside a full window.
std::uint32_t send_depth(std::uint32_t slots) { return 2 * slots + kControlSlots; }

ibv_sge sge_of(const DeviceBytes& payload) {
  ibv_sge where{};
  where.addr = payload.address;
  where.length = static_cast<std::uint32_t>(payload.size);
  where.lkey = payload.region->local_key;
  return where;
}

}  // namespace

IbvQueuePair::IbvQueuePair(std::shared_ptr<VerbsConnector> connector, const std::string& device, ibv_qp_type type,
                           PipeShape shape)
    : library_(VerbsLibrary::get()), connector_(std::move(connector)), reliable_(type == IBV_QPT_RC), shape_(shape) {
  ibv_device_attr limits{};
  const int error = library_.query_device(connector_->context(), &limits);
  if (error != 0) throw_errno(device + " does not tell its limits", error);
  claim_ = std::make_unique<VerbsClaim>(device, limits);
  gathers_ = reliable_ && limits.max_sge >= 2;
  // Where a packet of a longer message is lost, it hands on the rest of that message with the next one.
  if (!reliable_ && limits.vendor_id == kSoftRoce) {
    shape_.slots *= shape_.slot_bytes / kOnePacket;
    shape_.slot_bytes = kOnePacket;
  }
  const auto fits = [&](std::uint32_t slots) {
    const auto sends = static_cast<int>(send_depth(slots));
    const auto receives = static_cast<int>(PipeShape{slots, 0}.receives());
    return sends <= limits.max_qp_wr && receives <= limits.max_qp_wr && sends + receives <= limits.max_cqe;
  };
  while (shape_.slots > kFewestSlots && !fits(shape_.slots)) shape_.slots /= 2;
  try {
    make_queues(type);
    make_memory();
  } catch (...) {
    release();
    throw;
  }
}

IbvQueuePair::~IbvQueuePair() { release(); }

void IbvQueuePair::make_queues(ibv_qp_type type) {
  events_ = library_.create_comp_channel(connector_->context());
  if (events_ == nullptr) throw_errno("no completion channel", errno);
  ::fcntl(events_->fd, F_SETFL, ::fcntl(events_->fd, F_GETFL) | O_NONBLOCK);
  const std::uint32_t wanted = shape_.slots;
  // Advertised limits are not always true: what is refused is tried smaller.
  for (; shape_.slots >= kFewestSlots; shape_.slots /= 2) {
    if (try_make(type, shape_.slots, kInlineBytes) || try_make(type, shape_.slots, 0)) break;
  }
  if (queue_pair_ == nullptr) throw_errno("no queue pair", errno);
  // Fewer slots are larger: the pipe holds as many bytes.
  while (shape_.slots * shape_.slot_bytes < wanted * shape_.slot_bytes / 2 && shape_.slot_bytes < kMostSlotBytes) {
    shape_.slot_bytes *= 2;
  }
}

bool IbvQueuePair::try_make(ibv_qp_type type, std::uint32_t slots, std::uint32_t inline_bytes) {
  depth_ = send_depth(slots);
  interval_ = std::min(kReportEvery, depth_ / 2);
  const std::uint32_t receives = PipeShape{slots, 0}.receives();
  completions_ = library_.create_cq(connector_->context(), static_cast<int>(depth_ + receives), nullptr, events_, 0);
  if (completions_ == nullptr) return false;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_;
  attributes.qp_type = type;
  attributes.cap.max_send_wr = static_cast<std::uint32_t>(depth_);
  attributes.cap.max_recv_wr = receives;
  attributes.cap.max_send_sge = gathers_ ? 2 : 1;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = inline_bytes;
  queue_pair_ = connector_->make(attributes);
  if (queue_pair_ != nullptr) {
    inline_bytes_ = inline_bytes == 0 ? 0 : attributes.cap.max_inline_data;
    return true;
  }
  const int error = errno;
  library_.destroy_cq(completions_);
  completions_ = nullptr;
  errno = error;
  return false;
}

void IbvQueuePair::make_memory() {
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (shape_.memory_bytes(depth_) + page - 1) / page * page;
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (memory == MAP_FAILED) throw_errno("no memory for a queue pair", errno);
  memory_ = static_cast<std::byte*>(memory);
  memory_bytes_ = size;
#ifdef MADV_DONTFORK
  // A child's copy of these pages could leave the device with the wrong one.
  (void)::madvise(memory_, size, MADV_DONTFORK);
#endif
  region_ = library_.reg_mr(connector_->domain(), memory_, size, IBV_ACCESS_LOCAL_WRITE);
  if (region_ != nullptr) return;
  const int error = errno;
  const std::string what = "cannot register " + std::to_string(size >> 10) + " KiB of memory";
  throw_errno(error == ENOMEM ? what + " (is `ulimit -l` high enough?)" : what, error);
}

void IbvQueuePair::release() {
  if (queue_pair_ != nullptr) connector_->destroy(queue_pair_);
  if (completions_ != nullptr) library_.destroy_cq(completions_);
  if (events_ != nullptr) library_.destroy_comp_channel(events_);
  if (region_ != nullptr) library_.dereg_mr(region_);
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

void IbvQueuePair::fail(const std::string& why) {
  if (fault_.empty()) fault_ = why;
}

ibv_sge IbvQueuePair::place_of(ConstBytes frame) const {
  ibv_sge where{};
  where.addr = reinterpret_cast<std::uintptr_t>(frame.data());
  where.length = static_cast<std::uint32_t>(frame.size());
  where.lkey = region_->lkey;
  return where;
}

void IbvQueuePair::send(ConstBytes frame) {
  ibv_sge where = place_of(frame);
  ibv_send_wr request{};
  request.sg_list = &where;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = where.length <= inline_bytes_ ? IBV_SEND_INLINE : 0;
  post(request);
}

void IbvQueuePair::send_with(ConstBytes frame, const DeviceBytes& payload) {
  ibv_sge where[2] = {place_of(frame), sge_of(payload)};
  ibv_send_wr request{};
  request.sg_list = where;
  request.num_sge = 2;
  request.opcode = IBV_WR_SEND;  // never inline: the processor cannot read the payload
  post(request);
}

void IbvQueuePair::write(const DeviceBytes& payload, std::uint64_t remote_address, std::uint32_t remote_key) {
  ibv_sge where = sge_of(payload);
  ibv_send_wr request{};
  request.sg_list = &where;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = remote_address;
  request.wr.rdma.rkey = remote_key;
  post(request);
}

std::shared_ptr<DeviceRegion> IbvQueuePair::register_memory(const DeviceMemory& memory) {
  if (!reliable_) throw std::runtime_error("memory of devices needs a queue pair of type RC");
  if (!gathers_) throw std::runtime_error("the adapter does not send from two places of memory at once");
  return connector_->register_memory(memory);
}

void IbvQueuePair::stop() {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_ERR;
  (void)library_.modify_qp(queue_pair_, &to, IBV_QP_STATE);  // fails where it is in that state
  fail("it was stopped");
}

void IbvQueuePair::post(ibv_send_wr& request) {
  request.wr_id = ++posted_ | kSendMark;
  if (report_ || posted_ % interval_ == 0) request.send_flags |= IBV_SEND_SIGNALED;
  report_ = false;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(queue_pair_, &request, &refused);
  if (error != 0) fail(std::string("a send was refused: ") + std::strerror(error));
}

void IbvQueuePair::receive(std::span<const std::uint32_t> slots) {
  std::array<ibv_sge, kPostAtOnce> where{};
  std::array<ibv_recv_wr, kPostAtOnce> requests{};
  while (!slots.empty()) {
    const std::size_t n = std::min(slots.size(), kPostAtOnce);
    for (std::size_t i = 0; i < n; ++i) {
      where[i].addr = reinterpret_cast<std::uintptr_t>(memory_) + std::size_t{slots[i]} * shape_.slot_bytes;
      where[i].length = shape_.slot_bytes;
      where[i].lkey = region_->lkey;
      requests[i] = ibv_recv_wr{};
      requests[i].wr_id = slots[i];
      requests[i].next = i + 1 == n ? nullptr : &requests[i + 1];
      requests[i].sg_list = &where[i];
      requests[i].num_sge = 1;
    }
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(queue_pair_, requests.data(), &refused);
    if (error != 0) return fail(std::string("a receive was refused: ") + std::strerror(error));
    slots = slots.subspan(n);
  }
}

std::size_t IbvQueuePair::poll(std::span<Arrival> into) {
  std::array<ibv_wc, kMostCompletions> done;
  const int n = ibv_poll_cq(completions_, std::min(kMostCompletions, static_cast<int>(into.size())), done.data());
  if (n < 0) fail("its completion queue cannot be read");
  std::size_t arrived = 0;
  for (int i = 0; i < n; ++i) {
    const ibv_wc& one = done[static_cast<std::size_t>(i)];
    if (one.status != IBV_WC_SUCCESS) {
      fail(library_.wc_status_str(one.status));
    } else if ((one.wr_id & kSendMark) != 0) {
      completed_ = one.wr_id & ~kSendMark;
    } else {
      into[arrived++] = {static_cast<std::uint32_t>(one.wr_id), one.byte_len};
    }
  }
  return arrived;
}

void IbvQueuePair::arm() {
  const int error = ibv_req_notify_cq(completions_, 0);
  if (error != 0) fail(std::string("it cannot notify: ") + std::strerror(error));
}

void IbvQueuePair::take_events() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned taken = 0;
  while (library_.get_cq_event(events_, &queue, &context) == 0) ++taken;
  if (taken != 0) library_.ack_cq_events(completions_, taken);  // or destroying it would wait for that
}

}  // namespace ferrule
