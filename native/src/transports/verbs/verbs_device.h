// RDMA devices: what there is, and those that this process has opened.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ferrule/ferrule.h"
#include "transports/verbs/verbs_library.h"

namespace ferrule {

// Call `visit` for every port of every device. Throws std::runtime_error where the library or the kernel's part of it
// is missing.
void visit_ports(const std::function<void(const ferrule_verbs_port&)>& visit);

// An opened device. All queue pairs of the process share one, whatever group they are for, and its limits.
class VerbsDevice {
 public:
  // Throws std::runtime_error.
  static std::shared_ptr<VerbsDevice> open(const std::string& name);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const std::string& name() const { return name_; }

 private:
  explicit VerbsDevice(const std::string& name);

  const std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
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

// "cannot do it: why", from errno.
[[noreturn]] void throw_errno(const std::string& what, int error);

}  // namespace ferrule
