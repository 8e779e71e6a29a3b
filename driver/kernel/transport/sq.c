// SPDX-License-Identifier: GPL-2.0
/*
 * The send queue: requests are copied out of the ring, and completed in order.
 * Everything runs under channel->engine and qp->lock.
 */
#include "device/trace.h"

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

	if (fer_wants_answer(w) && w->started)
		qp->req.reads--;
	w->started = false;
	if (qp->req.cur == qp->req.cons)
		qp->req.cur = (qp->req.cur + 1) & sq->mask;
	qp->req.cons = (qp->req.cons + 1) & sq->mask;
	/* pairs with the poster's acquire: the entry was read */
	smp_store_release(&sq->buf->consumer_index, qp->req.cons);
	trace_fer_send_done(qp, &wc);
	if (status != IB_WC_SUCCESS || qp->sig_all || w->flags & IB_SEND_SIGNALED)
		fer_cq_push(to_fer_cq(qp->init.send_cq), qp, &wc, false);
}

void fer_sq_fail(struct fer_qp *qp, enum ib_wc_status status)
{
	fer_assert_locked(qp);
	if (!fer_sq_empty(qp))
		retire(qp, status);
	fer_qp_fail(qp, ib_wc_status_msg(status));
}

/* In SQD nothing new is begun. When what was begun is done, its owner may go on. */
void fer_sq_drained(struct fer_qp *qp)
{
	lockdep_assert_held(&qp->lock);
	if (!qp->req.tell_drained || qp->state != IB_QPS_SQD || !fer_sq_empty(qp))
		return;
	qp->req.tell_drained = false;
	fer_qp_event(qp, IB_EVENT_SQ_DRAINED);
}

void fer_sq_complete(struct fer_qp *qp)
{
	fer_assert_locked(qp);
	while (!fer_sq_empty(qp)) {
		struct fer_swqe *w = &qp->req.wqe[qp->req.cons];

		if (w->status) {
			fer_sq_fail(qp, w->status);
			return;
		}
		if (!w->started || fer_psn_diff(qp->req.una, w->last_psn) <= 0)
			return;
		retire(qp, IB_WC_SUCCESS);
	}
	fer_sq_drained(qp);
}

/* Go on sending from psn, which is between una and top. */
void fer_sq_seek(struct fer_qp *qp, u32 psn)
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
		return fer_is_ud(qp) ? IB_WC_LOC_QP_OP_ERR : 0;
	case IB_WR_RDMA_READ:
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
	case FER_WR_ATOMIC_WRITE:
		return fer_is_rc(qp) ? 0 : IB_WC_LOC_QP_OP_ERR;
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
	w->inlined = w->flags & IB_SEND_INLINE && !fer_wants_answer(w);
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
	if (length > (fer_is_ud(qp) ? ib_mtu_enum_to_int(IB_MTU_2048) : FER_MAX_MSG))
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
void fer_sq_fetch(struct fer_qp *qp)
{
	struct fer_queue *sq = qp->req.queue;
	const struct rxe_send_wqe *shared = fer_queue_at(sq, sq->idx);
	struct fer_swqe *w = &qp->req.wqe[sq->idx];
	struct rxe_send_wqe copy;

	fer_assert_locked(qp);
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
	if (fer_is_ud(qp)) {
		w->dqpn = copy.wr.wr.ud.remote_qpn;
		w->rkey = copy.wr.wr.ud.remote_qkey;
		w->ah_num = copy.wr.wr.ud.ah_num;
	}
	w->status = check_opcode(qp, copy.wr.opcode);
	if (!w->status)
		w->status = take_data(qp, w, shared, &copy);
	sq->idx = (sq->idx + 1) & sq->mask;
}

/* ---- endings ---- */

/* After an error everything that was posted comes back, so many in a round. */
void fer_sq_flush(struct fer_qp *qp)
{
	struct fer_queue *sq = qp->req.queue;
	int most = FER_FLUSH;

	fer_assert_locked(qp);
	while (most--) {
		if (fer_sq_empty(qp)) {
			if (!fer_queue_posted(sq))
				return;
			fer_sq_fetch(qp);
		}
		retire(qp, IB_WC_WR_FLUSH_ERR);
	}
	fer_qp_activate(qp);
}

/* Back to the start; what is in the ring is forgotten. */
void fer_sq_reset(struct fer_qp *qp)
{
	struct fer_queue *sq = qp->req.queue;

	lockdep_assert_held(&qp->lock);
	fer_queue_forget(sq);
	qp->req.cons = sq->idx;
	qp->req.cur = sq->idx;
	qp->req.reads = 0;
	qp->req.wait_until_ns = 0;
	qp->req.expires_ns = 0;
	qp->req.stalled = false;
}

/* ---- posting ---- */

static void put_target(struct fer_qp *qp, struct rxe_send_wqe *to, const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_RDMA_READ:
		to->wr.wr.rdma.remote_addr = rdma_wr(wr)->remote_addr;
		to->wr.wr.rdma.rkey = rdma_wr(wr)->rkey;
		break;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		to->wr.wr.atomic.remote_addr = atomic_wr(wr)->remote_addr;
		to->wr.wr.atomic.compare_add = atomic_wr(wr)->compare_add;
		to->wr.wr.atomic.swap = atomic_wr(wr)->swap;
		to->wr.wr.atomic.rkey = atomic_wr(wr)->rkey;
		break;
	default:
		if (!fer_is_ud(qp))
			break;
		to->wr.wr.ud.remote_qpn = ud_wr(wr)->remote_qpn;
		to->wr.wr.ud.remote_qkey = ud_wr(wr)->remote_qkey;
		to->wr.wr.ud.ah_num = to_fer_ah(ud_wr(wr)->ah)->num;
	}
}

static int put_data(struct fer_qp *qp, struct rxe_send_wqe *to, const struct ib_send_wr *wr)
{
	bool inlined = wr->send_flags & IB_SEND_INLINE;
	u32 length = 0;
	int i;

	if (wr->num_sge > qp->req.max_sge)
		return -EINVAL;
	for (i = 0; i < wr->num_sge; i++) {
		const struct ib_sge *sge = &wr->sg_list[i];

		if (inlined) {
			if (sge->length > qp->req.max_inline - length)
				return -EINVAL;
			memcpy(to->dma.inline_data + length, (void *)(uintptr_t)sge->addr,
			       sge->length);
		} else {
			to->dma.sge[i] = (struct rxe_sge){
				.addr = sge->addr, .length = sge->length, .lkey = sge->lkey,
			};
		}
		length += sge->length;
	}
	to->dma.length = length;
	to->dma.num_sge = wr->num_sge;
	return 0;
}

static int post_one(struct fer_qp *qp, const struct ib_send_wr *wr)
{
	struct rxe_send_wqe *place = fer_queue_room(qp->req.queue);
	int err;

	if (!place)
		return -ENOMEM;
	if (wr->opcode > IB_WR_ATOMIC_FETCH_AND_ADD)
		return -EOPNOTSUPP;
	memset(place, 0, sizeof(*place));
	place->wr.wr_id = wr->wr_id;
	place->wr.opcode = wr->opcode;
	place->wr.send_flags = wr->send_flags;
	place->wr.ex.imm_data = wr->ex.imm_data;
	put_target(qp, place, wr);
	err = put_data(qp, place, wr);
	if (!err)
		fer_queue_post(qp->req.queue);
	return err;
}

/*
 * A process has written into the ring and rings the doorbell, without wr; its request is carried
 * out here and now if no other thread does the channel's work. Users in the kernel may hold
 * locks, and so leave that to the channel's thread.
 */
int fer_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct fer_qp *qp = to_fer_qp(ibqp);
	bool user = qp->req.queue->mapped;
	unsigned long irq;
	int err = 0;

	if (READ_ONCE(qp->state) == IB_QPS_RESET || (user && wr)) {
		*bad = wr;
		return user && wr ? -EOPNOTSUPP : -EINVAL;
	}
	spin_lock_irqsave(&qp->req.post_lock, irq);
	for (; wr; wr = wr->next) {
		err = post_one(qp, wr);
		if (err) {
			*bad = wr;
			break;
		}
	}
	spin_unlock_irqrestore(&qp->req.post_lock, irq);
	fer_qp_activate(qp);
	if (user)
		fer_channel_drive(qp->dev->channel);
	else
		fer_channel_kick(qp->dev->channel);
	return err;
}
