/* SPDX-License-Identifier: GPL-2.0 */
/* Trace points in tracefs (events/ferrule_rdma). See docs/driver.md. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ferrule_rdma

#if !defined(FER_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define FER_TRACE_H

#include <linux/tracepoint.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>
#include <trace/misc/rdma.h>

#include "verbs/qp.h"

#define FER_TRACE_NAME	40	/* bytes of a device's name */
#define FER_TRACE_WHY	48

/* Numbers for tools that read raw events, then names as __print_symbolic() wants them. */
#define FER_TRACE_OPS \
	FER_OP_IS(CHANNEL_ACK) FER_OP_IS(SKIP) FER_OP_IS(SEND) FER_OP_IS(WRITE) FER_OP_IS(READ) \
	FER_OP_IS(CMP_SWAP) FER_OP_IS(FETCH_ADD) FER_OP_IS(READ_RESP) FER_OP_IS(ATOMIC_RESP) \
	FER_OP_IS(ACK) FER_OP_IS(NAK) FER_OP_LAST(DGRAM)

#undef FER_OP_IS
#undef FER_OP_LAST
#define FER_OP_IS(name) TRACE_DEFINE_ENUM(FER_OP_##name);
#define FER_OP_LAST(name) TRACE_DEFINE_ENUM(FER_OP_##name);
FER_TRACE_OPS
#undef FER_OP_IS
#undef FER_OP_LAST
#define FER_OP_IS(name) { FER_OP_##name, #name },
#define FER_OP_LAST(name) { FER_OP_##name, #name }

DECLARE_EVENT_CLASS(fer_frame,
	TP_PROTO(const struct fer_rail *rail, const struct fer_hdr *hdr),
	TP_ARGS(rail, hdr),
	TP_STRUCT__entry(
		__array(char, dev, FER_TRACE_NAME)
		__field(int, rail)
		__field(u8, op)
		__field(u8, flags)
		__field(u16, len)
		__field(u32, seq)
		__field(u32, ack)
		__field(u32, sqpn)
		__field(u32, dqpn)
		__field(u32, psn)
	),
	TP_fast_assign(
		strscpy(__entry->dev, fer_dev_name(rail->channel->dev), FER_TRACE_NAME);
		__entry->rail = rail->index;
		__entry->op = hdr->op;
		__entry->flags = hdr->flags;
		__entry->len = hdr->len;
		__entry->seq = hdr->seq;
		__entry->ack = hdr->ack;
		__entry->sqpn = hdr->sqpn;
		__entry->dqpn = hdr->dqpn;
		__entry->psn = hdr->psn;
	),
	TP_printk("%s rail %d %s seq %u ack %u qp %u>%u psn %u len %u flags %#x",
		  __entry->dev, __entry->rail,
		  __print_symbolic(__entry->op, FER_TRACE_OPS), __entry->seq,
		  __entry->ack, __entry->sqpn, __entry->dqpn, __entry->psn, __entry->len,
		  __entry->flags)
);

#define FER_FRAME_EVENT(name) \
DEFINE_EVENT(fer_frame, name, \
	TP_PROTO(const struct fer_rail *rail, const struct fer_hdr *hdr), TP_ARGS(rail, hdr))

/* each that is put on a wire, also those that go again */
FER_FRAME_EVENT(fer_frame_sent);

/* it goes again, or a skip in its place; why: late, missing or rerouted (enum fer_again) */
TRACE_EVENT(fer_frame_again,
	TP_PROTO(const struct fer_rail *rail, const struct fer_hdr *hdr, const char *why),
	TP_ARGS(rail, hdr, why),
	TP_STRUCT__entry(
		__array(char, dev, FER_TRACE_NAME)
		__array(char, why, FER_TRACE_WHY)
		__field(int, rail)
		__field(u8, op)
		__field(u32, seq)
	),
	TP_fast_assign(
		strscpy(__entry->dev, fer_dev_name(rail->channel->dev), FER_TRACE_NAME);
		strscpy(__entry->why, why, FER_TRACE_WHY);
		__entry->rail = rail->index;
		__entry->op = hdr->op;
		__entry->seq = hdr->seq;
	),
	TP_printk("%s rail %d %s seq %u: %s", __entry->dev, __entry->rail,
		  __print_symbolic(__entry->op, FER_TRACE_OPS), __entry->seq, __entry->why)
);

/* each of this session whose checksum and bounds are right, also what is here already */
FER_FRAME_EVENT(fer_frame_received);

DECLARE_EVENT_CLASS(fer_channel_state,
	TP_PROTO(const struct fer_channel *channel, int rail, u32 epoch, const char *why),
	TP_ARGS(channel, rail, epoch, why),
	TP_STRUCT__entry(
		__array(char, dev, FER_TRACE_NAME)
		__array(char, why, FER_TRACE_WHY)
		__field(int, rail)
		__field(u32, epoch)
	),
	TP_fast_assign(
		strscpy(__entry->dev, fer_dev_name(channel->dev), FER_TRACE_NAME);
		strscpy(__entry->why, why, FER_TRACE_WHY);
		__entry->rail = rail;
		__entry->epoch = epoch;
	),
	TP_printk("%s rail %d epoch %#x: %s", __entry->dev, __entry->rail, __entry->epoch,
		  __entry->why)
);

#define FER_CHANNEL_EVENT(name) \
DEFINE_EVENT(fer_channel_state, name, \
	TP_PROTO(const struct fer_channel *channel, int rail, u32 epoch, const char *why), \
	TP_ARGS(channel, rail, epoch, why))

/* rail: -1, as it is about all of them */
FER_CHANNEL_EVENT(fer_session_up);
FER_CHANNEL_EVENT(fer_session_down);
FER_CHANNEL_EVENT(fer_rail_up);
FER_CHANNEL_EVENT(fer_rail_down);

TRACE_EVENT(fer_qp_error,
	TP_PROTO(const struct fer_qp *qp, const char *why),
	TP_ARGS(qp, why),
	TP_STRUCT__entry(
		__array(char, dev, FER_TRACE_NAME)
		__array(char, why, FER_TRACE_WHY)
		__field(u32, qpn)
		__field(u32, peer)
		__field(int, state)
	),
	TP_fast_assign(
		strscpy(__entry->dev, fer_dev_name(qp->dev), FER_TRACE_NAME);
		strscpy(__entry->why, why, FER_TRACE_WHY);
		__entry->qpn = qp->ib.qp_num;
		__entry->peer = qp->peer_qpn;
		__entry->state = qp->state;
	),
	TP_printk("%s qp %u peer %u state %d: %s", __entry->dev, __entry->qpn, __entry->peer,
		  __entry->state, __entry->why)
);

DECLARE_EVENT_CLASS(fer_done,
	TP_PROTO(const struct fer_qp *qp, const struct ib_uverbs_wc *wc),
	TP_ARGS(qp, wc),
	TP_STRUCT__entry(
		__array(char, dev, FER_TRACE_NAME)
		__field(u64, wr_id)
		__field(u32, qpn)
		__field(u32, bytes)
		__field(int, opcode)
		__field(int, status)
	),
	TP_fast_assign(
		strscpy(__entry->dev, fer_dev_name(qp->dev), FER_TRACE_NAME);
		__entry->wr_id = wc->wr_id;
		__entry->qpn = qp->ib.qp_num;
		__entry->bytes = wc->byte_len;
		__entry->opcode = wc->opcode;
		__entry->status = wc->status;
	),
	TP_printk("%s qp %u wr_id %#llx opcode %d bytes %u: %s", __entry->dev, __entry->qpn,
		  __entry->wr_id, __entry->opcode, __entry->bytes,
		  rdma_show_wc_status(__entry->status))
);

#define FER_DONE_EVENT(name) \
DEFINE_EVENT(fer_done, name, \
	TP_PROTO(const struct fer_qp *qp, const struct ib_uverbs_wc *wc), TP_ARGS(qp, wc))

/* also those whose owner did not ask to be told */
FER_DONE_EVENT(fer_send_done);
FER_DONE_EVENT(fer_recv_done);

#endif

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH device
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
