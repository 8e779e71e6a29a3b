// RDMA devices: what there is, and those that this process has opened.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transports/device_memory.h"
#include "transports/verbs/verbs_library.h"

namespace ferrule {

struct VerbsGid {
  int index;
  ibv_gid value;
};

// A port of an RDMA device. If there is a problem, only that and the device's name are set.
struct VerbsPort {
  std::string device;
  std::string problem{};
  int port = 0;
  bool active = false;
  bool infiniband = false;  // the link layer; otherwise Ethernet
  bool iwarp = false;
  int mtu = 0;
  int lid = 0;
  std::uint32_t vendor = 0;
  int max_qp = 0;
  int max_mr = 0;
  int max_qp_wr = 0;
  std::vector<VerbsGid> gids{};  // those that are set
};

// Every port of every device. Throws std::runtime_error where the library or the kernel's part of it is missing.
std::vector<VerbsPort> verbs_ports();

// An opened device. All queue pairs of the process share one, whatever group they are for, and its limits.
class VerbsDevice : public std::enable_shared_from_this<VerbsDevice> {
 public:
  // Throws std::runtime_error.
  static std::shared_ptr<VerbsDevice> open(const std::string& name);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const std::string& name() const { return name_; }
  // For sends and for what a peer writes. Throws std::runtime_error; once the library or the driver has said that it
  // knows no dma-bufs, without asking again.
  std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory);

 private:
  explicit VerbsDevice(const std::string& name);

  const std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  std::atomic<bool> without_dmabuf_{false};
};

// The right to one queue pair and one memory region of a device, as long as it lives: some devices have ten of the
// former and a hundred of the latter. Other processes take theirs from the same stock, so the device may still refuse.
class VerbsClaim {
 public:
  // Throws std::runtime_error when this process has all already.
  VerbsClaim(const std::string& device, const ibv_device_attr& limits);
  ~VerbsClaim();
  VerbsClaim(const VerbsClaim&) = delete;
  VerbsClaim& operator=(const VerbsClaim&) = delete;

 private:
  const std::string device_;
};

// A queue pair that takes receives; nullptr and errno when it is refused.
ibv_qp* make_queue_pair(ibv_pd* domain, std::uint8_t port, ibv_qp_init_attr& wanted);

// "cannot do it: why", from errno.
[[noreturn]] void throw_errno(const std::string& what, int error);

}  // namespace ferrule
