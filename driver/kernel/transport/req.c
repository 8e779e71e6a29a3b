// SPDX-License-Identifier: GPL-2.0
/*
 * The requester: the frames of what was posted.
 * Everything runs under channel->engine and qp->lock.
 */
#include "verbs/qp.h"

static void start(struct fer_qp *qp, struct fer_swqe *w)
{
	w->first_psn = qp->req.psn;
	w->last_psn = (w->first_psn + fer_frames(w->length) - 1) & FER_PSN_MASK;
	if (fer_wants_answer(w) && w->opcode != IB_WR_RDMA_READ)
		w->last_psn = w->first_psn;
	w->started = true;
	if (fer_wants_answer(w))
		qp->req.reads++;
}

int fer_req_data(struct fer_qp *qp, struct fer_swqe *w, u32 offset, u8 *to, u32 len)
{
	if (w->inlined) {
		memcpy(to, w->data + offset, len);
		return 0;
	}
	return fer_sge_copy(to_fer_pd(qp->ib.pd), w->sge, w->num_sge, offset, to, len, false);
}

/* Mark the last frame of a message, with what only that one carries. */
void fer_req_last(const struct fer_swqe *w, struct fer_hdr *hdr)
{
	hdr->flags |= FER_LAST;
	if (w->opcode == IB_WR_SEND_WITH_IMM || w->opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
		hdr->flags |= FER_IMM;
		hdr->imm = w->imm;
	}
	if (w->flags & IB_SEND_SOLICITED)
		hdr->flags |= FER_SOLICITED;
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
	if (hdr->offset + hdr->len == w->length)
		fer_req_last(w, hdr);
	return fer_req_data(qp, w, hdr->offset, payload, hdr->len);
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

static int fill(struct fer_qp *qp, struct fer_swqe *w, struct fer_hdr *hdr, u8 *payload)
{
	if (fer_is_ud(qp))
		return fer_dgram_fill(qp, w, hdr, payload);
	if (!fer_wants_answer(w))
		return fill_message(qp, w, hdr, payload);
	if (w->opcode == IB_WR_RDMA_READ)
		fill_read(qp, w, hdr);
	else
		fill_atomic(w, hdr, payload);
	return 0;
}

/*
 * Send the next frame of w. False: the window is full. Without a session an unreliable
 * frame is lost, and the others wait as long as for an answer.
 */
static bool send_one(struct fer_qp *qp, struct fer_swqe *w)
{
	struct fer_channel *channel = qp->dev->channel;
	struct fer_frame *frame = fer_channel_get(channel);
	struct fer_hdr hdr = {
		.dqpn = qp->peer_qpn, .sqpn = qp->ib.qp_num, .psn = qp->req.psn,
		.flags = fer_is_rc(qp) ? 0 : FER_UNRELIABLE,
	};
	int err;

	if (!frame) {
		if (!channel->up && fer_is_rc(qp) && !qp->req.expires_ns)
			fer_req_expire(qp, ktime_get_ns());
		if (channel->up || fer_is_rc(qp))
			return false;
	} else {
		err = fill(qp, w, &hdr, frame->data + FER_HDR);
		if (err) {
			fer_channel_put(channel, frame);
			w->status = err == -EACCES ? IB_WC_LOC_PROT_ERR : IB_WC_LOC_QP_OP_ERR;
			return true;
		}
		fer_channel_send(channel, frame, &hdr);
	}
	if (fer_wants_answer(w))
		qp->req.psn = (w->last_psn + 1) & FER_PSN_MASK;
	else
		qp->req.psn = (qp->req.psn + 1) & FER_PSN_MASK;
	if (fer_psn_diff(qp->req.psn, qp->req.top) > 0)
		qp->req.top = qp->req.psn;
	if (fer_psn_diff(qp->req.psn, w->last_psn) > 0)
		qp->req.cur = (qp->req.cur + 1) & qp->req.queue->mask;
	if (!fer_is_rc(qp)) {
		qp->req.una = qp->req.psn;
		fer_sq_complete(qp);
	} else if (!qp->req.expires_ns) {
		fer_req_arm(qp, ktime_get_ns());
	}
	return true;
}

static bool must_wait(struct fer_qp *qp, const struct fer_swqe *w)
{
	u32 out = (qp->req.psn - qp->req.una) & FER_PSN_MASK;

	/* numbers are compared over half of their space; what is out must fit in there */
	if (out + fer_frames(w->length) > FER_PSN_MASK / 2)
		return true;
	if (w->flags & IB_SEND_FENCE && qp->req.reads)
		return true;
	return fer_wants_answer(w) && qp->req.reads >= max_t(u32, qp->attr.max_rd_atomic, 1);
}

/* Send up to budget frames. True: there is more to do. */
bool fer_req_run(struct fer_qp *qp, int budget)
{
	struct fer_queue *sq = qp->req.queue;
	struct fer_swqe *w;

	fer_assert_locked(qp);
	if (qp->req.wait_until_ns) {
		if (ktime_get_ns() < qp->req.wait_until_ns) {
			fer_qp_timer(qp, qp->req.wait_until_ns);
			return false;
		}
		qp->req.wait_until_ns = 0;
	}
	while (budget-- > 0) {
		if (qp->req.stalled || (qp->state != IB_QPS_RTS && qp->state != IB_QPS_SQD))
			return false;
		if (qp->req.cur == sq->idx) {
			if (qp->state == IB_QPS_SQD || !fer_queue_posted(sq))
				return false;
			/* its owner says that there is more than the ring can hold */
			if (((sq->idx + 1) & sq->mask) == qp->req.cons)
				return false;
			fer_sq_fetch(qp);
		}
		w = &qp->req.wqe[qp->req.cur];
		if (!w->status && !w->started) {
			if (must_wait(qp, w))
				return false;
			start(qp, w);
		}
		if (!w->status && !send_one(qp, w))
			return qp->dev->channel->up; /* else its next session looks here */
		if (w->status) {
			qp->req.stalled = true; /* told when all before it are done */
			fer_sq_complete(qp);
		}
	}
	return true;
}
