// Connects a queue pair to its peer: by exchanged descriptions, or by the RDMA connection manager.
#pragma once

#include <memory>
#include <string>

#include "transports/device_memory.h"
#include "transports/message.h"
#include "transports/verbs/verbs_library.h"

namespace ferrule {

// Parameters of this end that the other one must know; told over an authenticated connection.
struct VerbsDescription {
  std::uint32_t version = 2;
  std::uint8_t type = 0;  // ibv_qp_type
  std::uint8_t mtu = 0;   // ibv_mtu
  std::uint16_t lid = 0;
  std::uint32_t number = 0;   // of the queue pair
  std::uint32_t psn = 0;      // the first packet's number
  std::uint8_t gid[16] = {};  // or, with the connection manager, the IP address (IPv4 mapped) where one end listens
  std::uint16_t port = 0;     // and its port
  std::uint16_t unused = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t token = 0;
};
static_assert(sizeof(VerbsDescription) == 48);

enum class VerbsType { rc, uc };

struct VerbsOptions {
  std::string device;
  int port = 0;
  int gid_index = 0;  // unused with an address
  VerbsType type = VerbsType::rc;
  Stream stream = Stream::collectives;
  std::string address;   // iWARP: the IP address of this end; else empty
  bool listens = false;  // iWARP: of the two ends, exactly one does
};

class VerbsConnector {
 public:
  virtual ~VerbsConnector() = default;
  virtual ibv_context* context() const = 0;
  virtual ibv_pd* domain() const = 0;
  // A queue pair that takes receives; nullptr and errno when it is refused.
  virtual ibv_qp* make(ibv_qp_init_attr& attributes) = 0;
  virtual void destroy(ibv_qp* queue_pair) = 0;
  // Fill in what the other end needs to know of the way here.
  virtual void describe(const ibv_qp& queue_pair, VerbsDescription& mine) const = 0;
  // Returns when frames can come in; they may go out as soon as the other end has returned, too. Throws
  // std::runtime_error.
  virtual void join(ibv_qp& queue_pair, const VerbsDescription& mine, const VerbsDescription& theirs,
                    Clock::time_point deadline) = 0;
  // Throws std::runtime_error, also where there is no support for that.
  virtual std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory) = 0;
};

// Throws std::runtime_error.
std::shared_ptr<VerbsConnector> make_direct_connector(const VerbsOptions& options);
std::shared_ptr<VerbsConnector> make_managed_connector(const VerbsOptions& options);

}  // namespace ferrule
