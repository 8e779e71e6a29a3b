// Our declarations of libibverbs' and librdmacm's binary interface against the system's headers, where there are any.
#include "transports/verbs/verbs_abi.h"

#include <cstdio>

#if defined(__linux__) && __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define SAME_SIZE(type) static_assert(sizeof(ferrule::type) == sizeof(::type), #type)
#define SAME_PLACE(type, field)                                              \
  static_assert(offsetof(ferrule::type, field) == offsetof(::type, field) && \
                    sizeof(ferrule::type::field) == sizeof(::type::field),   \
                #type "." #field)
#define SAME_NUMBER(name) static_assert(static_cast<long>(ferrule::name) == static_cast<long>(::name), #name)

SAME_SIZE(ibv_gid);
SAME_SIZE(ibv_device_attr);
SAME_PLACE(ibv_device_attr, vendor_id);
SAME_PLACE(ibv_device_attr, max_qp);
SAME_PLACE(ibv_device_attr, max_qp_wr);
SAME_PLACE(ibv_device_attr, max_cqe);
SAME_PLACE(ibv_device_attr, max_mr);
SAME_PLACE(ibv_device_attr, phys_port_cnt);
static_assert(sizeof(ferrule::ibv_port_attr) >= sizeof(::ibv_port_attr), "the library fills what it knows of");
SAME_PLACE(ibv_port_attr, state);
SAME_PLACE(ibv_port_attr, active_mtu);
SAME_PLACE(ibv_port_attr, gid_tbl_len);
SAME_PLACE(ibv_port_attr, lid);
SAME_PLACE(ibv_port_attr, link_layer);
SAME_PLACE(ibv_device, transport_type);
SAME_SIZE(ibv_sge);
SAME_PLACE(ibv_sge, addr);
SAME_PLACE(ibv_sge, length);
SAME_PLACE(ibv_sge, lkey);
SAME_SIZE(ibv_send_wr);
SAME_PLACE(ibv_send_wr, wr_id);
SAME_PLACE(ibv_send_wr, next);
SAME_PLACE(ibv_send_wr, sg_list);
SAME_PLACE(ibv_send_wr, num_sge);
SAME_PLACE(ibv_send_wr, opcode);
SAME_PLACE(ibv_send_wr, send_flags);
SAME_PLACE(ibv_send_wr, wr);
static_assert(offsetof(ferrule::ibv_send_wr, wr.rdma.rkey) == offsetof(::ibv_send_wr, wr.rdma.rkey));
SAME_SIZE(ibv_recv_wr);
SAME_PLACE(ibv_recv_wr, wr_id);
SAME_PLACE(ibv_recv_wr, next);
SAME_PLACE(ibv_recv_wr, sg_list);
SAME_PLACE(ibv_recv_wr, num_sge);
SAME_SIZE(ibv_wc);
SAME_PLACE(ibv_wc, wr_id);
SAME_PLACE(ibv_wc, status);
SAME_PLACE(ibv_wc, byte_len);
SAME_PLACE(ibv_cq, context);
SAME_SIZE(ibv_mr);
SAME_PLACE(ibv_mr, lkey);
SAME_SIZE(ibv_comp_channel);
SAME_PLACE(ibv_comp_channel, fd);
SAME_SIZE(ibv_qp_init_attr);
SAME_PLACE(ibv_qp_init_attr, send_cq);
SAME_PLACE(ibv_qp_init_attr, recv_cq);
SAME_PLACE(ibv_qp_init_attr, cap);
SAME_PLACE(ibv_qp_init_attr, qp_type);
SAME_PLACE(ibv_qp_cap, max_send_wr);
SAME_PLACE(ibv_qp_cap, max_recv_wr);
SAME_PLACE(ibv_qp_cap, max_send_sge);
SAME_PLACE(ibv_qp_cap, max_recv_sge);
SAME_PLACE(ibv_qp_cap, max_inline_data);
SAME_PLACE(ibv_qp, context);
SAME_PLACE(ibv_qp, qp_num);
SAME_PLACE(ibv_qp, qp_type);
SAME_SIZE(ibv_ah_attr);
SAME_PLACE(ibv_ah_attr, dlid);
SAME_PLACE(ibv_ah_attr, is_global);
SAME_PLACE(ibv_ah_attr, port_num);
SAME_PLACE(ibv_global_route, dgid);
SAME_PLACE(ibv_global_route, sgid_index);
SAME_PLACE(ibv_global_route, hop_limit);
SAME_SIZE(ibv_qp_attr);
SAME_PLACE(ibv_qp_attr, qp_state);
SAME_PLACE(ibv_qp_attr, path_mtu);
SAME_PLACE(ibv_qp_attr, rq_psn);
SAME_PLACE(ibv_qp_attr, sq_psn);
SAME_PLACE(ibv_qp_attr, dest_qp_num);
SAME_PLACE(ibv_qp_attr, ah_attr);
SAME_PLACE(ibv_qp_attr, min_rnr_timer);
SAME_PLACE(ibv_qp_attr, port_num);
SAME_PLACE(ibv_qp_attr, timeout);
SAME_PLACE(ibv_qp_attr, retry_cnt);
SAME_PLACE(ibv_qp_attr, rnr_retry);
SAME_PLACE(ibv_context, device);
SAME_PLACE(ibv_context_ops, poll_cq);
SAME_PLACE(ibv_context_ops, req_notify_cq);
SAME_PLACE(ibv_context_ops, post_send);
SAME_PLACE(ibv_context_ops, post_recv);
static_assert(offsetof(ferrule::ibv_context, ops) == offsetof(::ibv_context, ops));
SAME_NUMBER(IBV_TRANSPORT_IWARP);
SAME_NUMBER(IBV_PORT_ACTIVE);
SAME_NUMBER(IBV_QPT_RC);
SAME_NUMBER(IBV_QPT_UC);
SAME_NUMBER(IBV_QPS_INIT);
SAME_NUMBER(IBV_QPS_RTR);
SAME_NUMBER(IBV_QPS_RTS);
SAME_NUMBER(IBV_QPS_ERR);
SAME_NUMBER(IBV_WR_RDMA_WRITE);
SAME_NUMBER(IBV_WR_SEND);
SAME_NUMBER(IBV_WC_SUCCESS);
SAME_NUMBER(IBV_SEND_SIGNALED);
SAME_NUMBER(IBV_SEND_INLINE);
SAME_NUMBER(IBV_ACCESS_LOCAL_WRITE);
SAME_NUMBER(IBV_ACCESS_REMOTE_WRITE);
SAME_NUMBER(IBV_LINK_LAYER_ETHERNET);
SAME_NUMBER(IBV_QP_STATE);
SAME_NUMBER(IBV_QP_ACCESS_FLAGS);
SAME_NUMBER(IBV_QP_PKEY_INDEX);
SAME_NUMBER(IBV_QP_PORT);
SAME_NUMBER(IBV_QP_AV);
SAME_NUMBER(IBV_QP_PATH_MTU);
SAME_NUMBER(IBV_QP_TIMEOUT);
SAME_NUMBER(IBV_QP_RETRY_CNT);
SAME_NUMBER(IBV_QP_RNR_RETRY);
SAME_NUMBER(IBV_QP_RQ_PSN);
SAME_NUMBER(IBV_QP_MAX_QP_RD_ATOMIC);
SAME_NUMBER(IBV_QP_MIN_RNR_TIMER);
SAME_NUMBER(IBV_QP_SQ_PSN);
SAME_NUMBER(IBV_QP_MAX_DEST_RD_ATOMIC);
SAME_NUMBER(IBV_QP_DEST_QPN);

SAME_NUMBER(RDMA_PS_TCP);
SAME_NUMBER(RDMA_CM_EVENT_ADDR_RESOLVED);
SAME_NUMBER(RDMA_CM_EVENT_ROUTE_RESOLVED);
SAME_NUMBER(RDMA_CM_EVENT_CONNECT_REQUEST);
SAME_NUMBER(RDMA_CM_EVENT_ESTABLISHED);
SAME_NUMBER(RDMA_CM_EVENT_DISCONNECTED);
SAME_SIZE(rdma_event_channel);
SAME_PLACE(rdma_cm_id, verbs);
SAME_SIZE(rdma_conn_param);
SAME_PLACE(rdma_conn_param, private_data);
SAME_PLACE(rdma_conn_param, private_data_len);
SAME_PLACE(rdma_conn_param, qp_num);
SAME_PLACE(rdma_cm_event, id);
SAME_PLACE(rdma_cm_event, event);
SAME_PLACE(rdma_cm_event, status);
static_assert(offsetof(ferrule::rdma_cm_event, param) == offsetof(::rdma_cm_event, param));

int main() { std::puts("as in the system's headers"); }
#else
int main() {
  std::puts("no headers of libibverbs and librdmacm here: nothing to compare with");
  return 77;  // skipped, for ctest
}
#endif
