// SPDX-License-Identifier: GPL-2.0
/* Receive queues: of one queue pair, or shared by several. */
#include <rdma/uverbs_ioctl.h>

#include "verbs/qp.h"

int fer_rq_init(struct fer_rq *rq, struct ib_ucontext *uctx, u32 max_wr, u32 max_sge,
		struct mminfo *info)
{
	u32 size = sizeof(struct rxe_recv_wqe) + max(max_sge, 1u) * sizeof(struct rxe_sge);

	spin_lock_init(&rq->lock);
	rq->max_sge = max_sge;
	rq->queue = fer_queue_create(uctx, max(max_wr, 1u), size, info);
	if (IS_ERR(rq->queue))
		return PTR_ERR(rq->queue);
	rq->max_wr = rq->queue->mask;
	return 0;
}

/* The oldest posted receive: 0, -EAGAIN if there is none, -EINVAL if it is nonsense. */
int fer_rq_take(struct fer_rq *rq, struct fer_rwqe *wqe)
{
	struct fer_queue *q = rq->queue;
	struct rxe_recv_wqe *shared;
	unsigned long irq;
	u64 length = 0;
	int err = 0;
	u32 i;

	spin_lock_irqsave(&rq->lock, irq);
	if (!fer_queue_posted(q)) {
		spin_unlock_irqrestore(&rq->lock, irq);
		return -EAGAIN;
	}
	shared = fer_queue_at(q, q->idx);
	wqe->wr_id = READ_ONCE(shared->wr_id);
	wqe->num_sge = READ_ONCE(shared->dma.num_sge);
	if (wqe->num_sge <= rq->max_sge)
		memcpy(wqe->sge, shared->dma.sge, wqe->num_sge * sizeof(wqe->sge[0]));
	else
		err = -EINVAL;
	q->idx = (q->idx + 1) & q->mask;
	/* pairs with the poster's acquire: the entry was read */
	smp_store_release(&q->buf->consumer_index, q->idx);
	spin_unlock_irqrestore(&rq->lock, irq);
	for (i = 0; !err && i < wqe->num_sge; i++)
		length += wqe->sge[i].length;
	wqe->length = min_t(u64, length, FER_MAX_MSG);
	return err;
}

static int post_one(struct fer_rq *rq, const struct ib_recv_wr *wr)
{
	struct rxe_recv_wqe *place = fer_queue_room(rq->queue);
	int i;

	if (!place)
		return -ENOMEM;
	if (wr->num_sge > rq->max_sge)
		return -EINVAL;
	place->wr_id = wr->wr_id;
	place->dma.num_sge = wr->num_sge;
	for (i = 0; i < wr->num_sge; i++)
		place->dma.sge[i] = (struct rxe_sge){
			.addr = wr->sg_list[i].addr, .length = wr->sg_list[i].length,
			.lkey = wr->sg_list[i].lkey,
		};
	fer_queue_post(rq->queue);
	return 0;
}

/* For users in the kernel; a process writes into its ring by itself. */
int fer_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct fer_qp *qp = to_fer_qp(ibqp);
	struct fer_rq *rq = &qp->resp.own;
	unsigned long irq;
	int err = 0;

	if (qp->ib.srq || rq->queue->mapped) {
		*bad = wr;
		return -EOPNOTSUPP;
	}
	spin_lock_irqsave(&rq->lock, irq);
	for (; wr; wr = wr->next) {
		err = post_one(rq, wr);
		if (err) {
			*bad = wr;
			break;
		}
	}
	spin_unlock_irqrestore(&rq->lock, irq);
	if (READ_ONCE(qp->state) == IB_QPS_ERR) {
		fer_qp_activate(qp); /* it comes back at once */
		fer_channel_kick(qp->dev->channel);
	}
	return err;
}

int fer_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *init, struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(ibsrq->device);
	struct fer_ucontext *uctx = rdma_udata_to_drv_context(udata, struct fer_ucontext, ib);
	struct fer_srq *srq = to_fer_srq(ibsrq);
	struct rxe_create_srq_resp resp = {};
	int err;

	if (!udata || init->srq_type != IB_SRQT_BASIC)
		return -EOPNOTSUPP;
	if (udata->outlen < sizeof(resp) || !init->attr.max_wr ||
	    init->attr.max_wr > FER_MAX_QP_WR || init->attr.max_sge > FER_MAX_SGE)
		return -EINVAL;
	err = fer_take(dev, udata, FER_KIND_SRQ, &srq->owner);
	if (err)
		return err;
	err = fer_rq_init(&srq->rq, &uctx->ib, init->attr.max_wr, init->attr.max_sge, &resp.mi);
	if (err)
		goto put_count;
	init->attr.max_wr = srq->rq.max_wr;
	srq->num = atomic_inc_return(&dev->srq_seq);
	srq->limit = init->attr.srq_limit;
	resp.srq_num = srq->num;
	err = ib_copy_to_udata(udata, &resp, sizeof(resp));
	if (!err)
		return 0;
	fer_queue_destroy(srq->rq.queue);
put_count:
	fer_give(dev, srq->owner, FER_KIND_SRQ);
	return err;
}

int fer_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		   struct ib_udata *udata)
{
	struct fer_srq *srq = to_fer_srq(ibsrq);

	if (mask & IB_SRQ_MAX_WR)
		return -EOPNOTSUPP;
	if (mask & IB_SRQ_LIMIT) {
		if (attr->srq_limit > srq->rq.max_wr)
			return -EINVAL;
		spin_lock_irq(&srq->rq.lock);
		srq->limit = attr->srq_limit;
		spin_unlock_irq(&srq->rq.lock);
	}
	return 0;
}

int fer_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct fer_srq *srq = to_fer_srq(ibsrq);

	attr->max_wr = srq->rq.max_wr;
	attr->max_sge = srq->rq.max_sge;
	spin_lock_irq(&srq->rq.lock);
	attr->srq_limit = srq->limit;
	spin_unlock_irq(&srq->rq.lock);
	return 0;
}

int fer_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	fer_queue_destroy(to_fer_srq(ibsrq)->rq.queue);
	fer_give(to_fer_dev(ibsrq->device), to_fer_srq(ibsrq)->owner, FER_KIND_SRQ);
	return 0;
}

/* One receive was taken: tell its owner once if few are left. */
void fer_srq_taken(struct fer_srq *srq)
{
	struct ib_event event = {
		.device = srq->ib.device, .element.srq = &srq->ib,
		.event = IB_EVENT_SRQ_LIMIT_REACHED,
	};
	struct fer_queue *q = srq->rq.queue;
	bool few = false;
	u32 left;

	spin_lock_irq(&srq->rq.lock);
	left = (READ_ONCE(q->buf->producer_index) - q->idx) & q->mask;
	if (srq->limit && left < srq->limit) {
		srq->limit = 0;
		few = true;
	}
	spin_unlock_irq(&srq->rq.lock);
	if (few && srq->ib.event_handler)
		srq->ib.event_handler(&event, srq->ib.srq_context);
}
