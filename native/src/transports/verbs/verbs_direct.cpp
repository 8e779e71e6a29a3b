// InfiniBand and RoCE: each end tells its queue pair where the other one is.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "transports/verbs/verbs_connector.h"
#include "transports/verbs/verbs_device.h"

namespace ferrule {
namespace {

constexpr std::uint8_t kTimeout = 14;  // 4.096 us * 2^14 = 67 ms until a packet is sent again
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kHopLimit = 64;

class DirectConnector final : public VerbsConnector {
 public:
  explicit DirectConnector(const VerbsOptions& options)
      : library_(VerbsLibrary::get()),
        device_(VerbsDevice::open(options.device)),
        port_(static_cast<std::uint8_t>(options.port)),
        gid_index_(static_cast<std::uint8_t>(options.gid_index)) {
    const int error = library_.query_port(context(), port_, &attributes_);
    if (error != 0) throw_errno(device_->name() + " has no port " + std::to_string(port_), error);
    if (attributes_.state != IBV_PORT_ACTIVE)
      throw std::runtime_error(device_->name() + " has no link: check its cable");
    if (library_.query_gid(context(), port_, options.gid_index, &gid_) != 0) {
      throw std::runtime_error(device_->name() + " has no GID " + std::to_string(options.gid_index) + " any more");
    }
  }

  ibv_context* context() const override { return device_->context(); }
  ibv_pd* domain() const override { return device_->domain(); }

  ibv_qp* make(ibv_qp_init_attr& wanted) override { return make_queue_pair(domain(), port_, wanted); }
  void destroy(ibv_qp* queue_pair) override { library_.destroy_qp(queue_pair); }

  void describe(const ibv_qp& queue_pair, VerbsDescription& mine) const override {
    mine.number = queue_pair.qp_num;
    mine.mtu = static_cast<std::uint8_t>(attributes_.active_mtu);
    mine.lid = attributes_.lid;
    std::memcpy(mine.gid, gid_.raw, sizeof mine.gid);
  }

  void join(ibv_qp& queue_pair, const VerbsDescription& mine, const VerbsDescription& theirs,
            Clock::time_point) override {
    const bool reliable = queue_pair.qp_type == IBV_QPT_RC;
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTR;
    to.path_mtu = static_cast<ibv_mtu>(std::min(mine.mtu, theirs.mtu));
    to.dest_qp_num = theirs.number;
    to.rq_psn = theirs.psn;
    to.min_rnr_timer = 12;  // 0.64 ms; a receive is always posted
    to.ah_attr.port_num = port_;
    if (attributes_.link_layer == IBV_LINK_LAYER_ETHERNET || theirs.lid == 0) {
      to.ah_attr.is_global = 1;
      to.ah_attr.grh.sgid_index = gid_index_;
      to.ah_attr.grh.hop_limit = kHopLimit;
      std::memcpy(to.ah_attr.grh.dgid.raw, theirs.gid, sizeof theirs.gid);
    } else {
      to.ah_attr.dlid = theirs.lid;
    }
    int fields = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable) fields |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    modify(queue_pair, to, fields, "ready to receive");
    to = ibv_qp_attr{};
    to.qp_state = IBV_QPS_RTS;
    to.sq_psn = mine.psn;
    to.timeout = kTimeout;
    to.retry_cnt = kRetries;
    to.rnr_retry = 6;
    fields = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (reliable) fields |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    modify(queue_pair, to, fields, "ready to send");
  }

  std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory) override {
    return device_->register_memory(memory);
  }

 private:
  void modify(ibv_qp& queue_pair, ibv_qp_attr& to, int fields, const char* what) const {
    const int error = library_.modify_qp(&queue_pair, &to, fields);
    if (error != 0) throw_errno("a queue pair of " + device_->name() + " does not get " + what, error);
  }

  const VerbsLibrary& library_;
  const std::shared_ptr<VerbsDevice> device_;
  const std::uint8_t port_;
  const std::uint8_t gid_index_;
  ibv_port_attr attributes_{};
  ibv_gid gid_{};
};

}  // namespace

std::shared_ptr<VerbsConnector> make_direct_connector(const VerbsOptions& options) {
  return std::make_shared<DirectConnector>(options);
}

}  // namespace ferrule
