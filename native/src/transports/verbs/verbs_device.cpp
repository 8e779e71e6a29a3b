#include "transports/verbs/verbs_device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

namespace ferrule {
namespace {

#ifdef __APPLE__
constexpr int kMostQueuePairs = 10;  // of a Thunderbolt port; its limits do not tell
#else
constexpr int kMostQueuePairs = 1 << 30;
#endif

std::mutex mutex;  // guards both
std::map<std::string, std::weak_ptr<VerbsDevice>> opened;
std::map<std::string, int> claimed;

class DeviceList {
 public:
  DeviceList() : library_(VerbsLibrary::get()), devices_(library_.get_device_list(&count_)) {
    if (devices_ == nullptr) throw_errno("the kernel has no RDMA support loaded", errno);
  }
  ~DeviceList() { library_.free_device_list(devices_); }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  ibv_device* const* begin() const { return devices_; }
  ibv_device* const* end() const { return devices_ + count_; }

 private:
  const VerbsLibrary& library_;
  int count_ = 0;
  ibv_device** devices_;
};

// An ibv_mr, and the device that it needs to the end.
class VerbsRegion final : public DeviceRegion {
 public:
  VerbsRegion(std::shared_ptr<VerbsDevice> device, ibv_mr* region, const DeviceMemory& memory)
      : DeviceRegion{memory.address, memory.length, region->lkey, region->rkey},
        device_(std::move(device)),
        region_(region) {}
  ~VerbsRegion() override { VerbsLibrary::get().dereg_mr(region_); }

 private:
  const std::shared_ptr<VerbsDevice> device_;
  ibv_mr* const region_;
};

bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](std::uint8_t byte) { return byte == 0; });
}

VerbsPort describe_port(const VerbsDevice& device, const ibv_device_attr& limits, std::uint8_t number,
                        const ibv_port_attr& attributes) {
  const VerbsLibrary& library = VerbsLibrary::get();
  VerbsPort port{.device = device.name()};
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    ibv_gid gid{};
    if (library.query_gid(device.context(), number, index, &gid) == 0 && !is_zero(gid))
      port.gids.push_back({index, gid});
  }
  port.port = number;
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.iwarp = device.context()->device->transport_type == IBV_TRANSPORT_IWARP;
  port.infiniband = !port.iwarp && attributes.link_layer != IBV_LINK_LAYER_ETHERNET;
  port.mtu = 128 << attributes.active_mtu;
  port.lid = attributes.lid;
  port.vendor = limits.vendor_id;
  port.max_qp = limits.max_qp;
  port.max_mr = limits.max_mr;
  port.max_qp_wr = limits.max_qp_wr;
  return port;
}

}  // namespace

void throw_errno(const std::string& what, int error) { throw std::runtime_error(what + ": " + std::strerror(error)); }

ibv_qp* make_queue_pair(ibv_pd* domain, std::uint8_t port, ibv_qp_init_attr& wanted) {
  const VerbsLibrary& library = VerbsLibrary::get();
  ibv_qp* const queue_pair = library.create_qp(domain, &wanted);
  if (queue_pair == nullptr) return nullptr;
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = port;
  // Memory of devices is written by the peer; nothing else is registered for that.
  if (wanted.qp_type == IBV_QPT_RC && library.reg_dmabuf_mr != nullptr) to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error =
      library.modify_qp(queue_pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0) return queue_pair;
  library.destroy_qp(queue_pair);
  errno = error;
  return nullptr;
}

std::vector<VerbsPort> verbs_ports() {
  const VerbsLibrary& library = VerbsLibrary::get();
  std::vector<std::string> names;
  for (ibv_device* device : DeviceList()) names.emplace_back(library.get_device_name(device));
  std::vector<VerbsPort> ports;
  for (const std::string& name : names) {
    try {
      const std::shared_ptr<VerbsDevice> device = VerbsDevice::open(name);
      ibv_device_attr limits{};
      if (library.query_device(device->context(), &limits) != 0) throw std::runtime_error("it tells no limits");
      for (std::uint8_t number = 1; number <= limits.phys_port_cnt; ++number) {
        ibv_port_attr attributes{};
        if (library.query_port(device->context(), number, &attributes) != 0) continue;
        ports.push_back(describe_port(*device, limits, number, attributes));
      }
    } catch (const std::runtime_error& error) {  // of this one; the others may be fine
      ports.push_back({.device = name, .problem = error.what()});
    }
  }
  return ports;
}

std::shared_ptr<VerbsDevice> VerbsDevice::open(const std::string& name) {
  const std::scoped_lock lock(mutex);
  std::weak_ptr<VerbsDevice>& known = opened[name];
  if (std::shared_ptr<VerbsDevice> device = known.lock()) return device;
  std::shared_ptr<VerbsDevice> device(new VerbsDevice(name));
  known = device;
  return device;
}

VerbsDevice::VerbsDevice(const std::string& name) : name_(name) {
  const VerbsLibrary& library = VerbsLibrary::get();
  for (ibv_device* device : DeviceList()) {
    if (name != library.get_device_name(device)) continue;
    context_ = library.open_device(device);
    if (context_ == nullptr) throw_errno("cannot open " + name, errno);
    domain_ = library.alloc_pd(context_);
    if (domain_ == nullptr) {
      const int error = errno;
      library.close_device(context_);
      throw_errno(name + " gives no protection domain", error);
    }
    return;
  }
  throw std::runtime_error("there is no RDMA device " + name);
}

VerbsDevice::~VerbsDevice() {
  const VerbsLibrary& library = VerbsLibrary::get();
  library.dealloc_pd(domain_);
  library.close_device(context_);
}

std::shared_ptr<DeviceRegion> VerbsDevice::register_memory(const DeviceMemory& memory) {
  const VerbsLibrary& library = VerbsLibrary::get();
  if (library.reg_dmabuf_mr == nullptr) throw std::runtime_error("libibverbs is older than 34 and knows no dma-bufs");
  const std::string refused = "the driver of " + name_ + " registers no dma-bufs";
  if (without_dmabuf_.load(std::memory_order_relaxed)) throw std::runtime_error(refused);
  errno = 0;
  ibv_mr* const region = library.reg_dmabuf_mr(domain_, memory.offset, memory.length, memory.address, memory.fd,
                                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (region != nullptr) return std::make_shared<VerbsRegion>(shared_from_this(), region, memory);
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EPROTONOSUPPORT) {
    without_dmabuf_.store(true, std::memory_order_relaxed);
    throw_errno(refused, errno);
  }
  throw_errno(name_ + " cannot register a dma-buf of " + std::to_string(memory.length) + " bytes", errno);
}

VerbsClaim::VerbsClaim(const std::string& device, const ibv_device_attr& limits) : device_(device) {
  const int most = std::min({limits.max_qp, limits.max_mr, kMostQueuePairs});
  const std::scoped_lock lock(mutex);
  int& count = claimed[device_];
  if (count >= most) {
    throw std::runtime_error(device_ + " has no queue pair left: this process uses all " + std::to_string(most));
  }
  ++count;
}

VerbsClaim::~VerbsClaim() {
  const std::scoped_lock lock(mutex);
  --claimed[device_];
}

}  // namespace ferrule
