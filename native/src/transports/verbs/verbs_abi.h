// The binary interface of libibverbs and librdmacm, as far as it is used here: layouts and numbers of their public ABI.
//
// So RDMA is always built, and the libraries are opened at run time where they are.
// tests/native/transports/verbs_abi.cpp compares this with the system's headers where these are installed. On macOS the
// SDK's header is used.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#ifdef __APPLE__
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>
#define FERRULE_SYSTEM_VERBS
#endif
#endif

namespace ferrule {

#ifndef FERRULE_SYSTEM_VERBS

struct ibv_comp_channel;
struct ibv_pd;
struct ibv_srq;

enum ibv_transport_type : int { IBV_TRANSPORT_IWARP = 1 };
enum ibv_port_state : int { IBV_PORT_ACTIVE = 4 };
enum ibv_mtu : int {};
enum ibv_qp_type : int { IBV_QPT_RC = 2, IBV_QPT_UC = 3 };
enum ibv_qp_state : int { IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_ERR = 6 };
enum ibv_wr_opcode : int { IBV_WR_RDMA_WRITE = 0, IBV_WR_SEND = 2 };
enum ibv_wc_status : int { IBV_WC_SUCCESS = 0 };
constexpr unsigned IBV_SEND_SIGNALED = 1 << 1;
constexpr unsigned IBV_SEND_INLINE = 1 << 3;
constexpr int IBV_ACCESS_LOCAL_WRITE = 1;
constexpr int IBV_ACCESS_REMOTE_WRITE = 2;
constexpr std::uint8_t IBV_LINK_LAYER_ETHERNET = 2;
constexpr int IBV_QP_STATE = 1 << 0;
constexpr int IBV_QP_ACCESS_FLAGS = 1 << 3;
constexpr int IBV_QP_PKEY_INDEX = 1 << 4;
constexpr int IBV_QP_PORT = 1 << 5;
constexpr int IBV_QP_AV = 1 << 7;
constexpr int IBV_QP_PATH_MTU = 1 << 8;
constexpr int IBV_QP_TIMEOUT = 1 << 9;
constexpr int IBV_QP_RETRY_CNT = 1 << 10;
constexpr int IBV_QP_RNR_RETRY = 1 << 11;
constexpr int IBV_QP_RQ_PSN = 1 << 12;
constexpr int IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
constexpr int IBV_QP_MIN_RNR_TIMER = 1 << 15;
constexpr int IBV_QP_SQ_PSN = 1 << 16;
constexpr int IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
constexpr int IBV_QP_DEST_QPN = 1 << 20;

union ibv_gid {
  std::uint8_t raw[16];
  std::uint64_t aligned[2];
};

struct ibv_device {
  void* entry_points[2];
  int node_type;
  ibv_transport_type transport_type;
  // and names
};

struct ibv_device_attr {
  char fw_ver[64];
  std::uint64_t guids_and_sizes[4];
  std::uint32_t vendor_id;
  std::uint32_t vendor_part_id;
  std::uint32_t hw_ver;
  int max_qp;
  int max_qp_wr;
  unsigned device_cap_flags;
  int max_sge;
  int max_sge_rd;
  int max_cq;
  int max_cqe;
  int max_mr;
  int more_limits[21];
  std::uint16_t max_pkeys;
  std::uint8_t local_ca_ack_delay;
  std::uint8_t phys_port_cnt;
};

struct ibv_port_attr {
  ibv_port_state state;
  ibv_mtu max_mtu;
  ibv_mtu active_mtu;
  int gid_tbl_len;
  std::uint32_t capabilities_and_counters[4];
  std::uint16_t pkey_tbl_len;
  std::uint16_t lid;
  std::uint16_t sm_lid;
  std::uint8_t lmc_to_phys_state[8];
  std::uint8_t link_layer;
  std::uint8_t flags;
  std::uint16_t port_cap_flags2;
  std::uint32_t active_speed_ex;
};

struct ibv_sge {
  std::uint64_t addr;
  std::uint32_t length;
  std::uint32_t lkey;
};

struct ibv_send_wr {
  std::uint64_t wr_id;
  ibv_send_wr* next;
  ibv_sge* sg_list;
  int num_sge;
  ibv_wr_opcode opcode;
  unsigned send_flags;
  std::uint32_t imm_data;
  union {
    struct {
      std::uint64_t remote_addr;
      std::uint32_t rkey;
    } rdma;
    std::uint64_t of_other_opcodes[4];
  } wr;
  std::uint64_t of_other_queue_pairs[7];
};

struct ibv_recv_wr {
  std::uint64_t wr_id;
  ibv_recv_wr* next;
  ibv_sge* sg_list;
  int num_sge;
};

struct ibv_wc {
  std::uint64_t wr_id;
  ibv_wc_status status;
  int opcode;
  std::uint32_t vendor_err;
  std::uint32_t byte_len;
  std::uint32_t imm_data;
  std::uint32_t qp_num;
  std::uint32_t src_qp;
  unsigned wc_flags;
  std::uint16_t pkey_index;
  std::uint16_t slid;
  std::uint8_t sl;
  std::uint8_t dlid_path_bits;
};

struct ibv_context;

struct ibv_cq {
  ibv_context* context;
  // and more
};

struct ibv_mr {
  ibv_context* context;
  ibv_pd* pd;
  void* addr;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t lkey;
  std::uint32_t rkey;
};

struct ibv_comp_channel {
  ibv_context* context;
  int fd;
  int refcnt;
};

struct ibv_qp_cap {
  std::uint32_t max_send_wr;
  std::uint32_t max_recv_wr;
  std::uint32_t max_send_sge;
  std::uint32_t max_recv_sge;
  std::uint32_t max_inline_data;
};

struct ibv_qp_init_attr {
  void* qp_context;
  ibv_cq* send_cq;
  ibv_cq* recv_cq;
  ibv_srq* srq;
  ibv_qp_cap cap;
  ibv_qp_type qp_type;
  int sq_sig_all;
};

struct ibv_qp {
  ibv_context* context;
  void* qp_context;
  ibv_pd* pd;
  ibv_cq* send_cq;
  ibv_cq* recv_cq;
  ibv_srq* srq;
  std::uint32_t handle;
  std::uint32_t qp_num;
  ibv_qp_state state;
  ibv_qp_type qp_type;
  // and more
};

struct ibv_global_route {
  ibv_gid dgid;
  std::uint32_t flow_label;
  std::uint8_t sgid_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
};

struct ibv_ah_attr {
  ibv_global_route grh;
  std::uint16_t dlid;
  std::uint8_t sl;
  std::uint8_t src_path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port_num;
};

struct ibv_qp_attr {
  ibv_qp_state qp_state;
  ibv_qp_state cur_qp_state;
  ibv_mtu path_mtu;
  int path_mig_state;
  std::uint32_t qkey;
  std::uint32_t rq_psn;
  std::uint32_t sq_psn;
  std::uint32_t dest_qp_num;
  unsigned qp_access_flags;
  ibv_qp_cap cap;
  ibv_ah_attr ah_attr;
  ibv_ah_attr alt_ah_attr;
  std::uint16_t pkey_index;
  std::uint16_t alt_pkey_index;
  std::uint8_t en_sqd_async_notify;
  std::uint8_t sq_draining;
  std::uint8_t max_rd_atomic;
  std::uint8_t max_dest_rd_atomic;
  std::uint8_t min_rnr_timer;
  std::uint8_t port_num;
  std::uint8_t timeout;
  std::uint8_t retry_cnt;
  std::uint8_t rnr_retry;
  std::uint8_t alt_port_num;
  std::uint8_t alt_timeout;
  std::uint32_t rate_limit;
};

// A driver's functions, which need no call into the library.
struct ibv_context_ops {
  void* before_poll_cq[11];
  int (*poll_cq)(ibv_cq*, int, ibv_wc*);
  int (*req_notify_cq)(ibv_cq*, int);
  void* before_post_send[12];
  int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
  int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**);
};

struct ibv_context {
  ibv_device* device;
  ibv_context_ops ops;
  // and more
};

inline int ibv_post_send(ibv_qp* queue_pair, ibv_send_wr* first, ibv_send_wr** refused) {
  return queue_pair->context->ops.post_send(queue_pair, first, refused);
}
inline int ibv_post_recv(ibv_qp* queue_pair, ibv_recv_wr* first, ibv_recv_wr** refused) {
  return queue_pair->context->ops.post_recv(queue_pair, first, refused);
}
inline int ibv_poll_cq(ibv_cq* queue, int most, ibv_wc* into) { return queue->context->ops.poll_cq(queue, most, into); }
inline int ibv_req_notify_cq(ibv_cq* queue, int solicited_only) {
  return queue->context->ops.req_notify_cq(queue, solicited_only);
}

#endif

// librdmacm

enum rdma_port_space : int { RDMA_PS_TCP = 0x0106 };

enum rdma_cm_event_type : int {
  RDMA_CM_EVENT_ADDR_RESOLVED = 0,
  RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
  RDMA_CM_EVENT_CONNECT_REQUEST = 4,
  RDMA_CM_EVENT_ESTABLISHED = 9,
  RDMA_CM_EVENT_DISCONNECTED = 10,
};

struct rdma_event_channel {
  int fd;
};

struct rdma_cm_id {
  ibv_context* verbs;
  // and more
};

struct rdma_conn_param {
  const void* private_data;
  std::uint8_t private_data_len;
  std::uint8_t responder_resources;
  std::uint8_t initiator_depth;
  std::uint8_t flow_control;
  std::uint8_t retry_count;
  std::uint8_t rnr_retry_count;
  std::uint8_t srq;
  std::uint32_t qp_num;
};

struct rdma_cm_event {
  rdma_cm_id* id;
  rdma_cm_id* listen_id;
  rdma_cm_event_type event;
  int status;
  union {
    rdma_conn_param conn;
  } param;
};

}  // namespace ferrule
