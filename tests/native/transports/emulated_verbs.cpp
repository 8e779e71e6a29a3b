// A libibverbs whose queue pairs are all in this process: RC and UC, SEND and RDMA WRITE, and dma-bufs, which it maps
// for itself. Every access is checked as an adapter does: keys, bounds, rights. Errors end a queue pair with a
// completion.
#include "transports/emulated_verbs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "transports/verbs/verbs_abi.h"

namespace ferrule {
namespace {

constexpr int kLocalProtection = 4, kRemoteAccess = 10, kRetryExceeded = 12, kReceiverNotReady = 13;
constexpr std::uint64_t kPage = 4096;

struct Region : ibv_mr {
  std::byte* begin;  // what stands for `base`
  std::uint64_t base;
  int rights;
  void* mapping;
  std::size_t mapped;
};

struct Bell : ibv_comp_channel {
  int ring;
  ibv_cq* queue;
};

struct Completions : ibv_cq {
  std::deque<ibv_wc> done;
  Bell* bell;
  bool armed;
};

struct Receive {
  std::uint64_t id;
  ibv_sge into;
};

struct Post {
  ibv_send_wr request;
  std::vector<ibv_sge> parts;
  std::vector<std::byte> inlined;
};

struct Pair : ibv_qp {
  std::uint32_t destination;
  std::deque<Receive> receives;
  std::deque<Post> held;
};

std::recursive_mutex mutex;  // guards all below and what they point to
std::map<std::uint32_t, Region*> regions;
std::map<std::uint32_t, Pair*> pairs;
std::uint32_t next_key = 100, next_number = 7;
EmulatedVerbs control;

std::byte* find(std::uint32_t key, std::uint64_t address, std::uint64_t length, int rights) {
  const auto found = regions.find(key);
  if (found == regions.end()) return nullptr;
  const Region& region = *found->second;
  const bool inside =
      address >= region.base && length <= region.length && address - region.base <= region.length - length;
  return inside && (region.rights & rights) == rights ? region.begin + (address - region.base) : nullptr;
}

void complete(ibv_cq* queue, std::uint64_t id, int status, std::uint32_t bytes) {
  auto& into = *static_cast<Completions*>(queue);
  ibv_wc one{};
  one.wr_id = id;
  one.status = static_cast<ibv_wc_status>(status);
  one.byte_len = bytes;
  into.done.push_back(one);
  if (!into.armed) return;
  into.armed = false;
  (void)!::write(into.bell->ring, "!", 1);
}

int carry(const ibv_send_wr& request, const std::vector<std::byte>& bytes, Pair& from) {
  const auto found = pairs.find(from.destination);
  if (found == pairs.end() || found->second->state < IBV_QPS_RTR || found->second->state == IBV_QPS_ERR) {
    return kRetryExceeded;
  }
  Pair& to = *found->second;
  if (request.opcode == IBV_WR_RDMA_WRITE) {
    std::byte* const into =
        find(request.wr.rdma.rkey, request.wr.rdma.remote_addr, bytes.size(), IBV_ACCESS_REMOTE_WRITE);
    if (into == nullptr) return kRemoteAccess;
    std::memcpy(into, bytes.data(), bytes.size());
    ++control.writes;
    return 0;
  }
  if (to.receives.empty()) return kReceiverNotReady;
  const Receive receive = to.receives.front();
  to.receives.pop_front();
  std::byte* const into = find(receive.into.lkey, receive.into.addr, bytes.size(), IBV_ACCESS_LOCAL_WRITE);
  if (into == nullptr || bytes.size() > receive.into.length) return kRemoteAccess;
  std::memcpy(into, bytes.data(), bytes.size());
  ++control.sends;
  complete(to.recv_cq, receive.id, 0, static_cast<std::uint32_t>(bytes.size()));
  return 0;
}

// The memory is read now, not when it was posted.
void perform(Pair& pair, const Post& post) {
  int status = 0;
  std::vector<std::byte> bytes = post.inlined;
  for (const ibv_sge& part : post.parts) {
    const std::byte* const at = find(part.lkey, part.addr, part.length, 0);
    if (at == nullptr) status = kLocalProtection;
    if (status == 0) bytes.insert(bytes.end(), at, at + part.length);
  }
  if (status == 0) status = carry(post.request, bytes, pair);
  if (status != 0) pair.state = IBV_QPS_ERR;
  if (status != 0 || (post.request.send_flags & IBV_SEND_SIGNALED) != 0)
    complete(pair.send_cq, post.request.wr_id, status, 0);
}

int post_send(ibv_qp* queue_pair, ibv_send_wr* first, ibv_send_wr** refused) {
  const std::scoped_lock lock(mutex);
  Pair& pair = *static_cast<Pair*>(queue_pair);
  for (ibv_send_wr* request = first; request != nullptr; request = request->next) {
    *refused = request;
    if (pair.state != IBV_QPS_RTS) return EINVAL;
    Post post{*request, {}, {}};
    for (int i = 0; i < request->num_sge; ++i) {
      const ibv_sge& part = request->sg_list[i];
      const auto* const at = reinterpret_cast<const std::byte*>(part.addr);
      if ((request->send_flags & IBV_SEND_INLINE) != 0) {
        post.inlined.insert(post.inlined.end(), at, at + part.length);
      } else {
        post.parts.push_back(part);
      }
    }
    if (control.hold || !pair.held.empty()) {
      pair.held.push_back(std::move(post));
    } else {
      perform(pair, post);
    }
  }
  return 0;
}

int post_recv(ibv_qp* queue_pair, ibv_recv_wr* first, ibv_recv_wr**) {
  const std::scoped_lock lock(mutex);
  for (; first != nullptr; first = first->next) {
    static_cast<Pair*>(queue_pair)->receives.push_back({first->wr_id, first->sg_list[0]});
  }
  return 0;
}

int poll_cq(ibv_cq* queue, int most, ibv_wc* into) {
  const std::scoped_lock lock(mutex);
  auto& done = static_cast<Completions*>(queue)->done;
  int n = 0;
  for (; n < most && !done.empty(); ++n, done.pop_front()) into[n] = done.front();
  return n;
}

int req_notify_cq(ibv_cq* queue, int) {
  const std::scoped_lock lock(mutex);
  static_cast<Completions*>(queue)->armed = true;
  return 0;
}

ibv_device device{};

ibv_context make_context() {
  ibv_context context{};
  context.device = &device;
  context.ops.poll_cq = poll_cq;
  context.ops.req_notify_cq = req_notify_cq;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_recv;
  return context;
}

ibv_context context = make_context();
std::byte domain;  // stands for the one protection domain

ibv_mr* publish(ibv_pd* pd, Region made) {
  const std::scoped_lock lock(mutex);
  auto* const region = new Region(made);
  region->context = &context;
  region->pd = pd;
  region->lkey = region->rkey = next_key++;
  regions[region->lkey] = region;
  return region;
}

}  // namespace
}  // namespace ferrule

using namespace ferrule;

EMULATED_VERBS EmulatedVerbs* emulated_verbs() { return &control; }

EMULATED_VERBS void emulated_release() {
  const std::scoped_lock lock(mutex);
  control.hold = false;
  for (auto& [number, pair] : pairs) {
    for (; !pair->held.empty(); pair->held.pop_front()) perform(*pair, pair->held.front());
  }
}

EMULATED_VERBS ibv_device** ibv_get_device_list(int* count) {
  *count = 1;
  return new ibv_device* [2] { &device, nullptr };
}
EMULATED_VERBS void ibv_free_device_list(ibv_device** list) { delete[] list; }
EMULATED_VERBS const char* ibv_get_device_name(ibv_device*) { return "emu0"; }
EMULATED_VERBS ibv_context* ibv_open_device(ibv_device*) { return &context; }
EMULATED_VERBS int ibv_close_device(ibv_context*) { return 0; }
EMULATED_VERBS int ibv_query_device(ibv_context*, ibv_device_attr* into) {
  *into = {};
  into->max_qp = into->max_mr = into->max_qp_wr = into->max_cqe = 1 << 16;
  into->max_sge = 2;
  into->phys_port_cnt = 1;
  return 0;
}
EMULATED_VERBS int ibv_query_port(ibv_context*, std::uint8_t, ibv_port_attr* into) {
  *into = {};
  into->state = IBV_PORT_ACTIVE;
  into->link_layer = IBV_LINK_LAYER_ETHERNET;
  into->gid_tbl_len = 1;
  return 0;
}
EMULATED_VERBS int ibv_query_gid(ibv_context*, std::uint8_t, int, ibv_gid* into) {
  std::memset(into->raw, 1, sizeof into->raw);
  return 0;
}
EMULATED_VERBS ibv_pd* ibv_alloc_pd(ibv_context*) { return reinterpret_cast<ibv_pd*>(&domain); }
EMULATED_VERBS int ibv_dealloc_pd(ibv_pd*) { return 0; }

EMULATED_VERBS ibv_mr* ibv_reg_mr(ibv_pd* pd, void* memory, std::size_t length, int access) {
  Region made{};
  made.length = length;
  made.begin = static_cast<std::byte*>(memory);
  made.base = reinterpret_cast<std::uintptr_t>(memory);
  made.rights = access;
  return publish(pd, made);
}

EMULATED_VERBS ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                                         int fd, int access) {
  ++control.asked;
  struct stat buffer {};
  errno = control.refuse_dmabuf;
  if (errno == 0 && ::fstat(fd, &buffer) != 0) errno = EBADF;
  if (errno == 0 && (length == 0 || offset + length > static_cast<std::uint64_t>(buffer.st_size))) errno = EINVAL;
  if (errno == 0 && control.dmabufs >= control.most_dmabufs) errno = ENOMEM;
  if (errno != 0) return nullptr;
  Region made{};
  const std::uint64_t before = offset % kPage;
  made.mapped = length + before;
  made.mapping =
      ::mmap(nullptr, made.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - before));
  if (made.mapping == MAP_FAILED) return nullptr;
  made.begin = static_cast<std::byte*>(made.mapping) + before;
  made.base = iova;
  made.length = length;
  made.rights = access;
  ++control.dmabufs;
  return publish(pd, made);
}

EMULATED_VERBS int ibv_dereg_mr(ibv_mr* which) {
  const std::scoped_lock lock(mutex);
  auto* const region = static_cast<Region*>(which);
  regions.erase(region->lkey);
  if (region->mapping != nullptr) {
    ::munmap(region->mapping, region->mapped);
    --control.dmabufs;
  }
  delete region;
  return 0;
}

EMULATED_VERBS ibv_comp_channel* ibv_create_comp_channel(ibv_context*) {
  int ends[2];
  if (::pipe(ends) != 0) return nullptr;
  auto* const bell = new Bell{};
  bell->context = &context;
  bell->fd = ends[0];
  bell->ring = ends[1];
  return bell;
}
EMULATED_VERBS int ibv_destroy_comp_channel(ibv_comp_channel* which) {
  auto* const bell = static_cast<Bell*>(which);
  ::close(bell->fd);
  ::close(bell->ring);
  delete bell;
  return 0;
}
EMULATED_VERBS ibv_cq* ibv_create_cq(ibv_context*, int, void*, ibv_comp_channel* channel, int) {
  auto* const queue = new Completions{};
  queue->context = &context;
  queue->bell = static_cast<Bell*>(channel);
  queue->bell->queue = queue;
  return queue;
}
EMULATED_VERBS int ibv_destroy_cq(ibv_cq* queue) {
  const std::scoped_lock lock(mutex);
  delete static_cast<Completions*>(queue);
  return 0;
}
EMULATED_VERBS int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void**) {
  char byte;
  *queue = static_cast<Bell*>(channel)->queue;
  return ::read(channel->fd, &byte, 1) == 1 ? 0 : -1;
}
EMULATED_VERBS void ibv_ack_cq_events(ibv_cq*, unsigned) {}

EMULATED_VERBS ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  const std::scoped_lock lock(mutex);
  auto* const pair = new Pair{};
  pair->context = &context;
  pair->pd = pd;
  pair->send_cq = wanted->send_cq;
  pair->recv_cq = wanted->recv_cq;
  pair->qp_type = wanted->qp_type;
  pair->qp_num = next_number++;
  pairs[pair->qp_num] = pair;
  return pair;
}
EMULATED_VERBS int ibv_modify_qp(ibv_qp* which, ibv_qp_attr* to, int fields) {
  const std::scoped_lock lock(mutex);
  auto* const pair = static_cast<Pair*>(which);
  if ((fields & IBV_QP_STATE) != 0) pair->state = to->qp_state;
  if ((fields & IBV_QP_DEST_QPN) != 0) pair->destination = to->dest_qp_num;
  return 0;
}
EMULATED_VERBS int ibv_destroy_qp(ibv_qp* which) {
  const std::scoped_lock lock(mutex);
  pairs.erase(which->qp_num);
  delete static_cast<Pair*>(which);
  return 0;
}
EMULATED_VERBS const char* ibv_wc_status_str(ibv_wc_status status) {
  return status == static_cast<ibv_wc_status>(kRetryExceeded) ? "retries exceeded" : "an error";
}
