// SPDX-License-Identifier: GPL-2.0
/*
 * The requester: sends what was posted, and completes it in order as answers come.
 * Everything runs under link->engine and qp->lock.
 */
#include <linux/slab.h>

#include "ferrule_rdma.h"

static const u32 rnr_us[32] = {
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
	5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760,
	327680, 491520,
};

static bool is_rc(struct fer_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_RC;
}

static bool is_ud(struct fer_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_UD;
}

static bool wants_answer(const struct fer_swqe *w)
{
	return w->opcode == IB_WR_RDMA_READ || w->opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
	       w->opcode == IB_WR_ATOMIC_FETCH_AND_ADD;
}

/* How long an answer may take: 4.096 us * 2^timeout by the standard, up to 4 times that. */
static u64 answer_time(struct fer_qp *qp)
{
	return 4 * (4096ull << (qp->attr.timeout & 31));
}

static void arm(struct fer_qp *qp, u64 now)
{
	if (!qp->attr.timeout || qp->req.una == qp->req.top) {
		qp->req.expires = 0;
		return;
	}
	qp->req.expires = now + answer_time(qp);
	fer_qp_timer(qp, qp->req.expires);
}

/* ---- completions ---- */

static u32 wc_opcode(const struct fer_swqe *w)
{
	switch (w->opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return IB_WC_RDMA_WRITE;
	case FER_WR_ATOMIC_WRITE:
		return FER_WC_ATOMIC_WRITE;
	case IB_WR_RDMA_READ:
		return IB_WC_RDMA_READ;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		return IB_WC_COMP_SWAP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return IB_WC_FETCH_ADD;
	default:
		return IB_WC_SEND;
	}
}

/* The oldest request is done, one way or the other: its place in the ring is free. */
static void retire(struct fer_qp *qp, enum ib_wc_status status)
{
	struct fer_queue *sq = qp->req.queue;
	struct fer_swqe *w = &qp->req.wqe[qp->req.cons];
	struct ib_uverbs_wc wc = {
		.wr_id = w->wr_id, .status = status, .opcode = wc_opcode(w),
		.byte_len = w->length, .qp_num = qp->ib.qp_num, .port_num = 1,
	};

	if (wants_answer(w) && w->started)
		qp->req.reads--;
	w->started = false;
	if (qp->req.cur == qp->req.cons)
		qp->req.cur = (qp->req.cur + 1) & sq->mask;
	qp->req.cons = (qp->req.cons + 1) & sq->mask;
	smp_store_release(&sq->buf->consumer_index, qp->req.cons);
	if (status != IB_WC_SUCCESS || qp->sig_all || w->flags & IB_SEND_SIGNALED)
		fer_cq_push(to_fer_cq(qp->init.send_cq), &wc, false);
}

static void fail_oldest(struct fer_qp *qp, enum ib_wc_status status)
{
	if (qp->req.cons != qp->req.queue->idx)
		retire(qp, status);
	fer_qp_fail(qp);
}

static void complete_done(struct fer_qp *qp)
{
	while (qp->req.cons != qp->req.queue->idx) {
		struct fer_swqe *w = &qp->req.wqe[qp->req.cons];

		if (w->status) {
			fail_oldest(qp, w->status);
			return;
		}
		if (!w->started || fer_psn_diff(qp->req.una, w->last_psn) <= 0)
			return;
		retire(qp, IB_WC_SUCCESS);
	}
}

/* Go on sending from psn, which is between una and top. */
static void seek(struct fer_qp *qp, u32 psn)
{
	u32 i = qp->req.cons;

	while (i != qp->req.queue->idx && qp->req.wqe[i].started &&
	       fer_psn_diff(psn, qp->req.wqe[i].last_psn) > 0)
		i = (i + 1) & qp->req.queue->mask;
	qp->req.cur = i;
	qp->req.psn = psn;
	qp->req.stalled = false;
}

/* ---- from the ring ---- */

static u8 check_opcode(struct fer_qp *qp, u32 opcode)
{
	switch (opcode) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
		return 0;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return is_ud(qp) ? IB_WC_LOC_QP_OP_ERR : 0;
	case IB_WR_RDMA_READ:
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
	case FER_WR_ATOMIC_WRITE:
		return is_rc(qp) ? 0 : IB_WC_LOC_QP_OP_ERR;
	default:
		return IB_WC_LOC_QP_OP_ERR;
	}
}

static u8 take_data(struct fer_qp *qp, struct fer_swqe *w, const struct rxe_send_wqe *shared,
		    const struct rxe_send_wqe *copy)
{
	u64 length = 0;
	u32 i;

	if (w->opcode == FER_WR_ATOMIC_WRITE) {
		w->inlined = true;
		w->length = 8;
		memcpy(w->data, shared->dma.inline_data, 8);
		return w->addr & 7 ? IB_WC_LOC_QP_OP_ERR : 0;
	}
	w->inlined = w->flags & IB_SEND_INLINE && !wants_answer(w);
	if (w->inlined) {
		if (copy->dma.length > qp->req.max_inline)
			return IB_WC_LOC_LEN_ERR;
		w->length = copy->dma.length;
		memcpy(w->data, shared->dma.inline_data, w->length);
		return 0;
	}
	if (copy->dma.num_sge > qp->req.max_sge)
		return IB_WC_LOC_QP_OP_ERR;
	w->num_sge = copy->dma.num_sge;
	memcpy(w->sge, shared->dma.sge, w->num_sge * sizeof(w->sge[0]));
	for (i = 0; i < w->num_sge; i++)
		length += w->sge[i].length;
	if (length > (is_ud(qp) ? ib_mtu_enum_to_int(IB_MTU_2048) : FER_MAX_MSG))
		return IB_WC_LOC_LEN_ERR;
	w->length = length;
	if (w->opcode == IB_WR_ATOMIC_CMP_AND_SWP || w->opcode == IB_WR_ATOMIC_FETCH_AND_ADD) {
		if (length < 8)
			return IB_WC_LOC_LEN_ERR;
		w->length = 8;
	}
	return 0;
}

/* Copy the next request out of memory that its owner may change at any time. */
static void fetch(struct fer_qp *qp)
{
	struct fer_queue *sq = qp->req.queue;
	const struct rxe_send_wqe *shared = fer_queue_at(sq, sq->idx);
	struct fer_swqe *w = &qp->req.wqe[sq->idx];
	struct rxe_send_wqe copy;

	memcpy(&copy, shared, sizeof(copy));
	barrier(); /* from here on only the copy counts */
	w->wr_id = copy.wr.wr_id;
	w->opcode = copy.wr.opcode;
	w->flags = copy.wr.send_flags;
	w->imm = (__force u32)copy.wr.ex.imm_data;
	w->started = false;
	w->num_sge = 0;
	w->length = 0;
	w->addr = copy.wr.wr.rdma.remote_addr;
	w->rkey = copy.wr.wr.rdma.rkey;
	if (w->opcode == IB_WR_ATOMIC_CMP_AND_SWP || w->opcode == IB_WR_ATOMIC_FETCH_AND_ADD) {
		w->rkey = copy.wr.wr.atomic.rkey;
		w->compare_add = copy.wr.wr.atomic.compare_add;
		w->swap = copy.wr.wr.atomic.swap;
	}
	if (is_ud(qp)) {
		w->dqpn = copy.wr.wr.ud.remote_qpn;
		w->rkey = copy.wr.wr.ud.remote_qkey;
		w->ah_num = copy.wr.wr.ud.ah_num;
	}
	w->status = check_opcode(qp, copy.wr.opcode);
	if (!w->status)
		w->status = take_data(qp, w, shared, &copy);
	sq->idx = (sq->idx + 1) & sq->mask;
}

/* ---- frames ---- */

static void start(struct fer_qp *qp, struct fer_swqe *w)
{
	w->first_psn = qp->req.psn;
	w->last_psn = (w->first_psn + fer_frames(w->length) - 1) & FER_PSN_MASK;
	if (wants_answer(w) && w->opcode != IB_WR_RDMA_READ)
		w->last_psn = w->first_psn;
	w->started = true;
	if (wants_answer(w))
		qp->req.reads++;
}

static int fill_data(struct fer_qp *qp, struct fer_swqe *w, u32 offset, u8 *to, u32 len)
{
	if (w->inlined) {
		memcpy(to, w->data + offset, len);
		return 0;
	}
	return fer_sge_copy(to_fer_pd(qp->ib.pd), w->sge, w->num_sge, offset, to, len, false);
}

static int fill_message(struct fer_qp *qp, struct fer_swqe *w, struct fer_hdr *hdr, u8 *payload)
{
	bool write = w->opcode == IB_WR_RDMA_WRITE || w->opcode == IB_WR_RDMA_WRITE_WITH_IMM ||
		     w->opcode == FER_WR_ATOMIC_WRITE;

	hdr->op = write ? FER_OP_WRITE : FER_OP_SEND;
	hdr->total = w->length;
	hdr->offset = fer_psn_diff(qp->req.psn, w->first_psn) * FER_PAYLOAD;
	hdr->len = min_t(u32, FER_PAYLOAD, w->length - hdr->offset);
	if (write) {
		hdr->addr = w->addr;
		hdr->rkey = w->rkey;
	}
	if (!hdr->offset)
		hdr->flags |= FER_FIRST;
	if (hdr->offset + hdr->len == w->length) {
		hdr->flags |= FER_LAST;
		if (w->opcode == IB_WR_SEND_WITH_IMM || w->opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
			hdr->flags |= FER_IMM;
			hdr->imm = w->imm;
		}
		if (w->flags & IB_SEND_SOLICITED)
			hdr->flags |= FER_SOLICITED;
	}
	return fill_data(qp, w, hdr->offset, payload, hdr->len);
}

/* A datagram: both addresses, then the data. */
static int fill_dgram(struct fer_qp *qp, struct fer_swqe *w, struct fer_hdr *hdr, u8 *payload)
{
	struct fer_ah *ah;

	xa_lock(&qp->dev->ahs);
	ah = xa_load(&qp->dev->ahs, w->ah_num);
	if (ah && ah->pd == to_fer_pd(qp->ib.pd)) {
		memcpy(payload, &ah->sgid, 16);
		memcpy(payload + 16, &ah->dgid, 16);
	} else {
		ah = NULL;
	}
	xa_unlock(&qp->dev->ahs);
	if (!ah)
		return -EINVAL;
	hdr->op = FER_OP_DGRAM;
	hdr->flags |= FER_FIRST | FER_LAST;
	hdr->dqpn = w->dqpn & FER_QPN_MASK;
	hdr->rkey = w->rkey & 0x80000000 ? qp->attr.qkey : w->rkey;
	hdr->len = 32 + w->length;
	hdr->total = hdr->len;
	if (w->opcode == IB_WR_SEND_WITH_IMM) {
		hdr->flags |= FER_IMM;
		hdr->imm = w->imm;
	}
	if (w->flags & IB_SEND_SOLICITED)
		hdr->flags |= FER_SOLICITED;
	return fill_data(qp, w, 0, payload + 32, w->length);
}

static void fill_read(struct fer_qp *qp, struct fer_swqe *w, struct fer_hdr *hdr)
{
	u32 done = fer_psn_diff(qp->req.psn, w->first_psn) * FER_PAYLOAD;

	hdr->op = FER_OP_READ;
	hdr->addr = w->addr + done;
	hdr->total = w->length - done;
	hdr->rkey = w->rkey;
}

static void fill_atomic(struct fer_swqe *w, struct fer_hdr *hdr, u8 *payload)
{
	hdr->op = w->opcode == IB_WR_ATOMIC_CMP_AND_SWP ? FER_OP_CMP_SWAP : FER_OP_FETCH_ADD;
	hdr->addr = w->addr;
	hdr->rkey = w->rkey;
	hdr->len = 16;
	memcpy(payload, &w->compare_add, 8);
	memcpy(payload + 8, &w->swap, 8);
}

/* Send the next frame of w. False: the window is full. */
static bool send_one(struct fer_qp *qp, struct fer_swqe *w)
{
	struct fer_link *link = qp->dev->link;
	struct fer_frame *frame = fer_link_get(link);
	struct fer_hdr hdr = {
		.dqpn = qp->peer_qpn, .sqpn = qp->ib.qp_num, .psn = qp->req.psn,
		.flags = is_rc(qp) ? 0 : FER_UNRELIABLE,
	};
	int err = 0;

	if (!frame)
		return false;
	if (is_ud(qp))
		err = fill_dgram(qp, w, &hdr, frame->data + FER_HDR);
	else if (w->opcode == IB_WR_RDMA_READ)
		fill_read(qp, w, &hdr);
	else if (wants_answer(w))
		fill_atomic(w, &hdr, frame->data + FER_HDR);
	else
		err = fill_message(qp, w, &hdr, frame->data + FER_HDR);
	if (err) {
		fer_link_put(link, frame);
		w->status = err == -EACCES ? IB_WC_LOC_PROT_ERR : IB_WC_LOC_QP_OP_ERR;
		return true;
	}
	fer_link_send(link, frame, &hdr);
	if (wants_answer(w))
		qp->req.psn = (w->last_psn + 1) & FER_PSN_MASK;
	else
		qp->req.psn = (qp->req.psn + 1) & FER_PSN_MASK;
	if (fer_psn_diff(qp->req.psn, qp->req.top) > 0)
		qp->req.top = qp->req.psn;
	if (fer_psn_diff(qp->req.psn, w->last_psn) > 0)
		qp->req.cur = (qp->req.cur + 1) & qp->req.queue->mask;
	if (!is_rc(qp)) {
		qp->req.una = qp->req.psn;
		complete_done(qp);
	} else if (!qp->req.expires) {
		arm(qp, ktime_get_ns());
	}
	return true;
}

static bool must_wait(struct fer_qp *qp, const struct fer_swqe *w)
{
	if (w->flags & IB_SEND_FENCE && qp->req.reads)
		return true;
	return wants_answer(w) && qp->req.reads >= max_t(u32, qp->attr.max_rd_atomic, 1);
}

/* Send up to budget frames. True: there is more to do. */
bool fer_req_run(struct fer_qp *qp, int budget)
{
	struct fer_queue *sq = qp->req.queue;
	struct fer_swqe *w;

	if (qp->req.wait) {
		if (ktime_get_ns() < qp->req.wait) {
			fer_qp_timer(qp, qp->req.wait);
			return false;
		}
		qp->req.wait = 0;
	}
	while (budget-- > 0) {
		if (qp->req.stalled || (qp->state != IB_QPS_RTS && qp->state != IB_QPS_SQD))
			return false;
		if (qp->req.cur == sq->idx) {
			if (qp->state == IB_QPS_SQD || !fer_queue_posted(sq))
				return false;
			fetch(qp);
		}
		w = &qp->req.wqe[qp->req.cur];
		if (!w->status && !w->started) {
			if (must_wait(qp, w))
				return false;
			start(qp, w);
		}
		if (!w->status && !send_one(qp, w))
			return true;
		if (w->status) {
			qp->req.stalled = true; /* told when all before it are done */
			complete_done(qp);
		}
	}
	return true;
}

/* ---- answers ---- */

/* All frames up to psn have been carried out, but READs and atomics end with their answer. */
void fer_req_ack(struct fer_qp *qp, u32 psn)
{
	u32 i, una = (psn + 1) & FER_PSN_MASK;

	if (!is_rc(qp) || fer_psn_diff(una, qp->req.una) <= 0 ||
	    fer_psn_diff(una, qp->req.top) > 0)
		return;
	for (i = qp->req.cons; i != qp->req.queue->idx; i = (i + 1) & qp->req.queue->mask) {
		struct fer_swqe *w = &qp->req.wqe[i];

		if (!w->started || fer_psn_diff(w->first_psn, una) >= 0)
			break;
		if (wants_answer(w)) {
			if (fer_psn_diff(w->first_psn, qp->req.una) > 0)
				qp->req.una = w->first_psn;
			una = qp->req.una;
			break;
		}
	}
	qp->req.una = una;
	if (fer_psn_diff(una, qp->req.psn) > 0)
		seek(qp, una);
	qp->req.retries = qp->attr.retry_cnt;
	qp->req.rnr_retries = qp->attr.rnr_retry;
	arm(qp, ktime_get_ns());
	complete_done(qp);
}

void fer_req_response(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	struct fer_swqe *w;
	u32 offset = 0, len = 8;
	int err;

	fer_req_ack(qp, (hdr->psn - 1) & FER_PSN_MASK);
	if (!is_rc(qp) || hdr->psn != qp->req.una || qp->req.cons == qp->req.queue->idx)
		return;
	w = &qp->req.wqe[qp->req.cons];
	if (!w->started || !wants_answer(w) || fer_psn_diff(hdr->psn, w->first_psn) < 0 ||
	    fer_psn_diff(hdr->psn, w->last_psn) > 0 ||
	    (w->opcode == IB_WR_RDMA_READ) != (hdr->op == FER_OP_READ_RESP))
		return;
	if (hdr->op == FER_OP_READ_RESP) {
		offset = fer_psn_diff(hdr->psn, w->first_psn) * FER_PAYLOAD;
		len = min_t(u32, FER_PAYLOAD, w->length - offset);
	}
	if (hdr->len != len) {
		fail_oldest(qp, IB_WC_BAD_RESP_ERR);
		return;
	}
	err = fer_sge_copy(to_fer_pd(qp->ib.pd), w->sge, w->num_sge, offset, payload, len, true);
	if (err) {
		fail_oldest(qp, IB_WC_LOC_PROT_ERR);
		return;
	}
	qp->req.una = (hdr->psn + 1) & FER_PSN_MASK;
	if (fer_psn_diff(qp->req.una, qp->req.psn) > 0)
		seek(qp, qp->req.una);
	qp->req.retries = qp->attr.retry_cnt;
	arm(qp, ktime_get_ns());
	complete_done(qp);
}

static void not_ready(struct fer_qp *qp, u32 code)
{
	if (qp->attr.rnr_retry != 7 && !qp->req.rnr_retries) {
		fail_oldest(qp, IB_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	if (qp->attr.rnr_retry != 7)
		qp->req.rnr_retries--;
	qp->req.wait = ktime_get_ns() + rnr_us[code & 31] * (u64)NSEC_PER_USEC;
	qp->req.expires = 0;
	seek(qp, qp->req.una);
}

void fer_req_nak(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	if (!is_rc(qp) || fer_psn_diff(hdr->psn, qp->req.una) < 0 ||
	    fer_psn_diff(hdr->psn, qp->req.top) >= 0)
		return;
	fer_req_ack(qp, (hdr->psn - 1) & FER_PSN_MASK);
	if (qp->state == IB_QPS_ERR)
		return;
	switch (hdr->imm) {
	case FER_NAK_RNR:
		not_ready(qp, hdr->offset);
		break;
	case FER_NAK_SEQ:
		seek(qp, qp->req.una);
		break;
	case FER_NAK_ACCESS:
		fail_oldest(qp, IB_WC_REM_ACCESS_ERR);
		break;
	case FER_NAK_OPERATION:
		fail_oldest(qp, IB_WC_REM_OP_ERR);
		break;
	default:
		fail_oldest(qp, IB_WC_REM_INV_REQ_ERR);
	}
}

/* The queue pair's timer: a pause is over, an answer is late, or there are receives to flush. */
void fer_req_timeout(struct fer_qp *qp, u64 now)
{
	if (qp->state == IB_QPS_ERR || (qp->req.wait && now >= qp->req.wait))
		fer_qp_activate(qp);
	else if (qp->req.wait)
		fer_qp_timer(qp, qp->req.wait);
	if (!qp->req.expires || qp->state == IB_QPS_ERR)
		return;
	if (now < qp->req.expires) {
		fer_qp_timer(qp, qp->req.expires);
		return;
	}
	fer_count(qp->dev->link, FER_STAT_QP_TIMEOUT);
	qp->req.expires = 0;
	if (!qp->req.retries) {
		fail_oldest(qp, IB_WC_RETRY_EXC_ERR);
		return;
	}
	qp->req.retries--;
	seek(qp, qp->req.una);
	fer_qp_activate(qp);
}

/* After an error: everything that was posted comes back. */
void fer_req_flush(struct fer_qp *qp)
{
	struct fer_queue *sq = qp->req.queue;
	u32 most = sq->mask + 1;

	while (most--) {
		if (qp->req.cons == sq->idx) {
			if (!fer_queue_posted(sq))
				return;
			fetch(qp);
		}
		retire(qp, IB_WC_WR_FLUSH_ERR);
	}
	fer_qp_activate(qp);
}

/* Back to the start; what is in the ring is forgotten. */
void fer_req_reset(struct fer_qp *qp)
{
	struct fer_queue *sq = qp->req.queue;

	sq->idx = smp_load_acquire(&sq->buf->producer_index) & sq->mask;
	smp_store_release(&sq->buf->consumer_index, sq->idx);
	qp->req.cons = sq->idx;
	qp->req.cur = sq->idx;
	qp->req.reads = 0;
	qp->req.wait = 0;
	qp->req.expires = 0;
	qp->req.stalled = false;
}
