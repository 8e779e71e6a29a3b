// SPDX-License-Identifier: GPL-2.0
/*
 * The responder: carries out what the peer asks for, after checking it, and answers.
 * Everything runs under link->engine and qp->lock.
 */
#include <linux/slab.h>

#include "ferrule_rdma.h"

#define GRH 40

static bool is_rc(struct fer_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_RC;
}

static u32 pending(struct fer_qp *qp)
{
	return qp->resp.res_tail - qp->resp.res_head;
}

/* ---- refusing ---- */

static void nak(struct fer_qp *qp, enum fer_nak code, u32 psn)
{
	static const enum fer_stat stats[] = {
		[FER_NAK_RNR] = FER_STAT_RNR_NAK, [FER_NAK_SEQ] = FER_STAT_SEQ_NAK,
		[FER_NAK_INVALID] = FER_STAT_INVALID_NAK, [FER_NAK_ACCESS] = FER_STAT_ACCESS_NAK,
		[FER_NAK_OPERATION] = FER_STAT_INVALID_NAK,
	};

	fer_count(qp->dev->link, stats[code]);
	qp->resp.nak = code;
	qp->resp.nak_psn = psn;
	if (code != FER_NAK_RNR && code != FER_NAK_SEQ)
		qp->resp.closed = true;
}

/* A request that must not be: RC tells the peer and stops, UC drops the message. */
static void refuse(struct fer_qp *qp, enum fer_nak code, const struct fer_hdr *hdr)
{
	qp->resp.in_message = false;
	if (is_rc(qp))
		nak(qp, code, hdr->psn);
	else
		fer_count(qp->dev->link, FER_STAT_UC_DROPPED);
}

/* ---- receives ---- */

static void complete_recv(struct fer_qp *qp, enum ib_wc_status status, const struct fer_hdr *hdr,
			  u32 bytes, u32 flags)
{
	struct ib_uverbs_wc wc = {
		.wr_id = qp->resp.wqe.wr_id, .status = status, .opcode = IB_WC_RECV,
		.qp_num = qp->ib.qp_num, .port_num = 1, .byte_len = bytes, .wc_flags = flags,
	};

	qp->resp.have_wqe = false;
	if (hdr) {
		wc.src_qp = hdr->sqpn;
		if (hdr->op == FER_OP_WRITE)
			wc.opcode = IB_WC_RECV_RDMA_WITH_IMM;
		if (hdr->flags & FER_IMM) {
			wc.ex.imm_data = (__force __be32)hdr->imm;
			wc.wc_flags |= IB_WC_WITH_IMM;
		}
	}
	fer_cq_push(to_fer_cq(qp->init.recv_cq), &wc, hdr && hdr->flags & FER_SOLICITED);
}

/* 0: qp->resp.wqe is a receive to fill. */
static int take_recv(struct fer_qp *qp)
{
	int err;

	if (qp->resp.have_wqe)
		return 0;
	err = fer_rq_take(qp->resp.rq, &qp->resp.wqe);
	if (err == -EAGAIN)
		return err;
	qp->resp.have_wqe = true;
	if (qp->ib.srq)
		fer_srq_taken(to_fer_srq(qp->ib.srq));
	return err;
}

/* A receive that cannot take the message: its owner is told, and the queue pair stops. */
static void bad_recv(struct fer_qp *qp, enum ib_wc_status status, enum fer_nak code,
		     const struct fer_hdr *hdr)
{
	complete_recv(qp, status, NULL, 0, 0);
	refuse(qp, code, hdr);
	if (!is_rc(qp))
		fer_qp_fail(qp);
}

/* ---- requests with data; true: carried out ---- */

static bool do_send(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	int err;

	if (hdr->flags & FER_FIRST) {
		err = take_recv(qp);
		if (err == -EAGAIN) {
			refuse(qp, FER_NAK_RNR, hdr);
			return false;
		}
		if (err) {
			bad_recv(qp, IB_WC_LOC_QP_OP_ERR, FER_NAK_OPERATION, hdr);
			return false;
		}
	}
	if (hdr->total > qp->resp.wqe.length) {
		bad_recv(qp, IB_WC_LOC_LEN_ERR, FER_NAK_INVALID, hdr);
		return false;
	}
	err = fer_sge_copy(to_fer_pd(qp->ib.pd), qp->resp.wqe.sge, qp->resp.wqe.num_sge,
			   hdr->offset, payload, hdr->len, true);
	if (err) {
		bad_recv(qp, IB_WC_LOC_PROT_ERR, FER_NAK_OPERATION, hdr);
		return false;
	}
	if (hdr->flags & FER_LAST)
		complete_recv(qp, IB_WC_SUCCESS, hdr, hdr->total, 0);
	return true;
}

static bool do_write(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	struct fer_mr *mr;
	int err;

	if (!(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_WRITE)) {
		refuse(qp, FER_NAK_ACCESS, hdr);
		return false;
	}
	if (hdr->flags & FER_LAST && hdr->flags & FER_IMM) {
		err = take_recv(qp);
		if (err == -EAGAIN && is_rc(qp)) {
			nak(qp, FER_NAK_RNR, hdr->psn); /* the message goes on from here */
			return false;
		}
		if (err == -EAGAIN) {
			refuse(qp, FER_NAK_RNR, hdr);
			return false;
		}
		if (err) {
			bad_recv(qp, IB_WC_LOC_QP_OP_ERR, FER_NAK_OPERATION, hdr);
			return false;
		}
	}
	if (hdr->total) {
		/* each time for the whole message: keys may go away between its frames */
		mr = fer_mr_get(to_fer_pd(qp->ib.pd), hdr->rkey, hdr->addr, hdr->total,
				IB_ACCESS_REMOTE_WRITE);
		if (!mr) {
			refuse(qp, FER_NAK_ACCESS, hdr);
			return false;
		}
		fer_mr_copy(mr, hdr->addr + hdr->offset, payload, hdr->len, true);
		fer_mr_put(mr);
	}
	if (hdr->flags & FER_LAST && hdr->flags & FER_IMM)
		complete_recv(qp, IB_WC_SUCCESS, hdr, hdr->total, 0);
	return true;
}

/* Pieces of one message follow each other, and messages do not mix. */
static bool continues(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	if (hdr->flags & FER_FIRST)
		return !qp->resp.in_message;
	return qp->resp.in_message && qp->resp.op == hdr->op && qp->resp.offset == hdr->offset;
}

static bool do_piece(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	bool done;

	if (!continues(qp, hdr)) {
		refuse(qp, FER_NAK_INVALID, hdr);
		return false;
	}
	done = hdr->op == FER_OP_SEND ? do_send(qp, hdr, payload) : do_write(qp, hdr, payload);
	if (done) {
		qp->resp.in_message = !(hdr->flags & FER_LAST);
		qp->resp.op = hdr->op;
		qp->resp.offset = hdr->offset + hdr->len;
	}
	return done;
}

/* ---- READ and atomics: put down here, answered by fer_resp_run() ---- */

static struct fer_res *put_res(struct fer_qp *qp)
{
	return &qp->resp.res[qp->resp.res_tail++ % FER_MAX_RD_ATOM];
}

static bool do_read(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	struct fer_mr *mr = NULL;

	if (pending(qp) >= qp->attr.max_dest_rd_atomic) {
		refuse(qp, FER_NAK_INVALID, hdr);
		return false;
	}
	if (qp->attr.qp_access_flags & IB_ACCESS_REMOTE_READ && hdr->total)
		mr = fer_mr_get(to_fer_pd(qp->ib.pd), hdr->rkey, hdr->addr, hdr->total,
				IB_ACCESS_REMOTE_READ);
	if (!mr && (hdr->total || !(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_READ))) {
		refuse(qp, FER_NAK_ACCESS, hdr);
		return false;
	}
	if (mr)
		fer_mr_put(mr);
	*put_res(qp) = (struct fer_res){
		.op = FER_OP_READ, .psn = hdr->psn, .frames = fer_frames(hdr->total),
		.rkey = hdr->rkey, .total = hdr->total, .addr = hdr->addr,
	};
	return true;
}

static bool do_atomic(struct fer_qp *qp, const struct fer_hdr *hdr, const u8 *payload)
{
	u64 compare_add, swap, old;
	struct fer_mr *mr = NULL;
	int err;

	if (hdr->addr & 7 || pending(qp) >= qp->attr.max_dest_rd_atomic) {
		refuse(qp, FER_NAK_INVALID, hdr);
		return false;
	}
	if (qp->attr.qp_access_flags & IB_ACCESS_REMOTE_ATOMIC)
		mr = fer_mr_get(to_fer_pd(qp->ib.pd), hdr->rkey, hdr->addr, 8,
				IB_ACCESS_REMOTE_ATOMIC);
	if (!mr) {
		refuse(qp, FER_NAK_ACCESS, hdr);
		return false;
	}
	memcpy(&compare_add, payload, 8);
	memcpy(&swap, payload + 8, 8);
	err = fer_mr_atomic(mr, hdr->addr, hdr->op, compare_add, swap, &old);
	fer_mr_put(mr);
	if (err) {
		refuse(qp, FER_NAK_INVALID, hdr);
		return false;
	}
	*put_res(qp) = (struct fer_res){
		.op = hdr->op, .psn = hdr->psn, .frames = 1, .original = old,
	};
	return true;
}

/* An old request again: its answer was lost or late. Nothing is carried out twice. */
static void repeat(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	u32 i;

	switch (hdr->op) {
	case FER_OP_READ:
		if (fer_psn_diff(hdr->psn + fer_frames(hdr->total), qp->resp.psn) <= 0 &&
		    pending(qp) < qp->attr.max_dest_rd_atomic)
			do_read(qp, hdr);
		return;
	case FER_OP_CMP_SWAP:
	case FER_OP_FETCH_ADD:
		for (i = 0; i < FER_MAX_RD_ATOM; i++) {
			struct fer_res old = qp->resp.res[i];

			if (old.op != hdr->op || old.psn != hdr->psn)
				continue;
			if (pending(qp) < qp->attr.max_dest_rd_atomic) {
				old.sent = 0;
				*put_res(qp) = old;
			}
			return;
		}
		return;
	default:
		qp->resp.ack = true;
		qp->resp.ack_psn = (qp->resp.psn - 1) & FER_PSN_MASK;
	}
}

/* ---- frames ---- */

static void rc_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	int ahead = fer_psn_diff(hdr->psn, qp->resp.psn);
	u32 frames = 1;
	bool done;

	if (qp->resp.closed)
		return;
	if (ahead > 0) {
		if (!qp->resp.nak_sent && !qp->resp.nak)
			nak(qp, FER_NAK_SEQ, qp->resp.psn);
		qp->resp.nak_sent = true;
		return;
	}
	if (ahead < 0) {
		repeat(qp, hdr);
		return;
	}
	switch (hdr->op) {
	case FER_OP_SEND:
	case FER_OP_WRITE:
		done = do_piece(qp, hdr, payload);
		break;
	case FER_OP_READ:
	case FER_OP_CMP_SWAP:
	case FER_OP_FETCH_ADD:
		if (qp->resp.in_message) {
			refuse(qp, FER_NAK_INVALID, hdr);
			return;
		}
		done = hdr->op == FER_OP_READ ? do_read(qp, hdr) : do_atomic(qp, hdr, payload);
		if (hdr->op == FER_OP_READ)
			frames = fer_frames(hdr->total);
		break;
	default:
		refuse(qp, FER_NAK_INVALID, hdr);
		return;
	}
	/* what follows a refused request is dropped, and its gap is known already */
	qp->resp.nak_sent = !done;
	if (!done)
		return;
	qp->resp.psn = (qp->resp.psn + frames) & FER_PSN_MASK;
	if (hdr->op == FER_OP_SEND || hdr->op == FER_OP_WRITE) {
		if (hdr->flags & FER_LAST || !(qp->resp.psn % 64)) {
			qp->resp.ack = true;
			qp->resp.ack_psn = hdr->psn;
		}
	}
}

static void uc_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	if (hdr->op != FER_OP_SEND && hdr->op != FER_OP_WRITE)
		return;
	if (hdr->flags & FER_FIRST) {
		if (qp->resp.in_message)
			fer_count(qp->dev->link, FER_STAT_UC_DROPPED);
		qp->resp.in_message = false;
	} else if (hdr->psn != qp->resp.psn || !qp->resp.in_message) {
		if (qp->resp.in_message)
			fer_count(qp->dev->link, FER_STAT_UC_DROPPED);
		qp->resp.in_message = false;
		return;
	}
	qp->resp.psn = (hdr->psn + 1) & FER_PSN_MASK;
	do_piece(qp, hdr, payload);
}

void fer_resp_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	if (is_rc(qp))
		rc_frame(qp, hdr, payload);
	else if (qp->ib.qp_type == IB_QPT_UC)
		uc_frame(qp, hdr, payload);
}

/* A datagram arrives with 40 bytes before it that say where it came from. */
void fer_resp_dgram(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	struct ib_grh grh = {
		.version_tclass_flow = cpu_to_be32(6 << 28),
		.next_hdr = 0x1b, .hop_limit = 1,
	};
	u32 len;

	if (qp->ib.qp_type != IB_QPT_UD || hdr->len < 32 || hdr->rkey != qp->attr.qkey ||
	    qp->state < IB_QPS_RTR || qp->state > IB_QPS_SQD) {
		fer_count(qp->dev->link, FER_STAT_WRONG_PEER);
		return;
	}
	len = hdr->len - 32;
	memcpy(&grh.sgid, payload, 16);
	memcpy(&grh.dgid, payload + 16, 16);
	grh.paylen = cpu_to_be16(len);
	if (take_recv(qp)) {
		fer_count(qp->dev->link, FER_STAT_UC_DROPPED);
		return;
	}
	if (qp->resp.wqe.length < GRH + len) {
		complete_recv(qp, IB_WC_LOC_LEN_ERR, NULL, 0, 0);
		fer_qp_fail(qp);
		return;
	}
	if (fer_sge_copy(to_fer_pd(qp->ib.pd), qp->resp.wqe.sge, qp->resp.wqe.num_sge, 0,
			 (u8 *)&grh, GRH, true) ||
	    fer_sge_copy(to_fer_pd(qp->ib.pd), qp->resp.wqe.sge, qp->resp.wqe.num_sge, GRH,
			 payload + 32, len, true)) {
		complete_recv(qp, IB_WC_LOC_PROT_ERR, NULL, 0, 0);
		fer_qp_fail(qp);
		return;
	}
	complete_recv(qp, IB_WC_SUCCESS, hdr, GRH + len, IB_WC_GRH);
}

/* ---- answering ---- */

/* The next frame of an answer. False: the memory may not be read any more. */
static bool fill_answer(struct fer_qp *qp, struct fer_res *res, struct fer_hdr *hdr, u8 *payload)
{
	struct fer_mr *mr;

	hdr->psn = (res->psn + res->sent) & FER_PSN_MASK;
	if (res->op != FER_OP_READ) {
		hdr->op = FER_OP_ATOMIC_RESP;
		hdr->len = 8;
		memcpy(payload, &res->original, 8);
		return true;
	}
	hdr->op = FER_OP_READ_RESP;
	hdr->total = res->total;
	hdr->offset = res->sent * FER_PAYLOAD;
	hdr->len = min_t(u32, FER_PAYLOAD, res->total - hdr->offset);
	if (!hdr->offset)
		hdr->flags |= FER_FIRST;
	if (hdr->offset + hdr->len == hdr->total)
		hdr->flags |= FER_LAST;
	if (!res->total)
		return true;
	mr = fer_mr_get(to_fer_pd(qp->ib.pd), res->rkey, res->addr, res->total,
			IB_ACCESS_REMOTE_READ);
	if (!mr)
		return false;
	fer_mr_copy(mr, res->addr + hdr->offset, payload, hdr->len, false);
	fer_mr_put(mr);
	return true;
}

static void answer(struct fer_qp *qp, struct fer_frame *frame, struct fer_hdr *hdr)
{
	struct fer_res *res = &qp->resp.res[qp->resp.res_head % FER_MAX_RD_ATOM];

	if (!fill_answer(qp, res, hdr, frame->data + FER_HDR)) {
		fer_link_put(qp->dev->link, frame);
		qp->resp.res_head = qp->resp.res_tail;
		nak(qp, FER_NAK_ACCESS, hdr->psn);
		return;
	}
	fer_link_send(qp->dev->link, frame, hdr);
	if (++res->sent == res->frames)
		qp->resp.res_head++;
}

static void send_nak(struct fer_qp *qp, struct fer_frame *frame, struct fer_hdr *hdr)
{
	hdr->op = FER_OP_NAK;
	hdr->psn = qp->resp.nak_psn;
	hdr->imm = qp->resp.nak;
	hdr->offset = qp->resp.nak == FER_NAK_RNR ? qp->attr.min_rnr_timer : 0;
	fer_link_send(qp->dev->link, frame, hdr);
	qp->resp.nak = 0;
	if (qp->resp.closed) {
		fer_qp_fail(qp);
		fer_qp_event(qp, hdr->imm == FER_NAK_ACCESS ? IB_EVENT_QP_ACCESS_ERR :
						   IB_EVENT_QP_REQ_ERR);
	}
}

/* Send what is owed, in order: answers, then acknowledgements. True: there is more. */
bool fer_resp_run(struct fer_qp *qp, int budget)
{
	while (budget-- > 0 && qp->state != IB_QPS_ERR) {
		struct fer_hdr hdr = { .dqpn = qp->peer_qpn, .sqpn = qp->ib.qp_num };
		struct fer_frame *frame;

		if (!pending(qp) && !qp->resp.ack && !qp->resp.nak)
			return false;
		frame = fer_link_get(qp->dev->link);
		if (!frame)
			return true;
		if (pending(qp)) {
			answer(qp, frame, &hdr);
		} else if (qp->resp.ack) {
			hdr.op = FER_OP_ACK;
			hdr.psn = qp->resp.ack_psn;
			qp->resp.ack = false;
			fer_link_send(qp->dev->link, frame, &hdr);
		} else {
			send_nak(qp, frame, &hdr);
		}
	}
	return qp->state != IB_QPS_ERR;
}

void fer_resp_flush(struct fer_qp *qp)
{
	u32 most;

	if (qp->resp.have_wqe)
		complete_recv(qp, IB_WC_WR_FLUSH_ERR, NULL, 0, 0);
	if (qp->ib.srq)
		return;
	for (most = qp->resp.rq->queue->mask + 1; most; most--) {
		if (fer_rq_take(qp->resp.rq, &qp->resp.wqe) == -EAGAIN)
			return;
		complete_recv(qp, IB_WC_WR_FLUSH_ERR, NULL, 0, 0);
	}
}

void fer_resp_reset(struct fer_qp *qp)
{
	struct fer_queue *q = qp->resp.own.queue;

	if (!qp->ib.srq) {
		q->idx = smp_load_acquire(&q->buf->producer_index) & q->mask;
		smp_store_release(&q->buf->consumer_index, q->idx);
	}
	qp->resp.in_message = false;
	qp->resp.have_wqe = false;
	qp->resp.ack = false;
	qp->resp.nak = 0;
	qp->resp.nak_sent = false;
	qp->resp.closed = false;
	qp->resp.res_head = 0;
	qp->resp.res_tail = 0;
	memset(qp->resp.res, 0, sizeof(qp->resp.res));
}
