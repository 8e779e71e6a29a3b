// SPDX-License-Identifier: GPL-2.0
/* Completion queues: filled under channel->engine, emptied by user space without a call. */
#include <rdma/uverbs_ioctl.h>

#include "verbs/qp.h"

int fer_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr, struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(ibcq->device);
	struct fer_ucontext *uctx = rdma_udata_to_drv_context(udata, struct fer_ucontext, ib);
	struct fer_cq *cq = to_fer_cq(ibcq);
	struct rxe_create_cq_resp resp = {};
	int err;

	if (attr->flags & ~IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN)
		return -EOPNOTSUPP;
	if ((udata && udata->outlen < sizeof(resp)) || !attr->cqe || attr->cqe > FER_MAX_CQE ||
	    attr->comp_vector >= ibcq->device->num_comp_vectors)
		return -EINVAL;
	err = fer_take(dev, udata, FER_KIND_CQ, &cq->owner);
	if (err)
		return err;
	spin_lock_init(&cq->lock);
	cq->queue = fer_queue_create(uctx ? &uctx->ib : NULL, attr->cqe,
				     udata ? sizeof(struct ib_uverbs_wc) : sizeof(struct ib_wc),
				     &resp.mi);
	if (IS_ERR(cq->queue)) {
		err = PTR_ERR(cq->queue);
		goto put_count;
	}
	err = udata ? ib_copy_to_udata(udata, &resp, sizeof(resp)) : 0;
	if (err)
		goto destroy;
	ibcq->cqe = cq->queue->mask;
	return 0;
destroy:
	fer_queue_destroy(cq->queue);
put_count:
	fer_give(dev, cq->owner, FER_KIND_CQ);
	return err;
}

int fer_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	fer_queue_destroy(to_fer_cq(ibcq)->queue);
	fer_give(to_fer_dev(ibcq->device), to_fer_cq(ibcq)->owner, FER_KIND_CQ);
	return 0;
}

int fer_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct fer_cq *cq = to_fer_cq(ibcq);
	struct fer_queue *q = cq->queue;
	unsigned long irq;
	int missed = 0;

	spin_lock_irqsave(&cq->lock, irq);
	/* asked for any, then for solicited ones: any it remains */
	if (cq->notify != IB_CQ_NEXT_COMP)
		cq->notify = flags & IB_CQ_SOLICITED_MASK;
	if (flags & IB_CQ_REPORT_MISSED_EVENTS)
		missed = (READ_ONCE(q->buf->consumer_index) & q->mask) != q->idx;
	spin_unlock_irqrestore(&cq->lock, irq);
	return missed;
}

/* For users in the kernel; a process empties its queue by itself. */
int fer_poll_cq(struct ib_cq *ibcq, int most, struct ib_wc *wc)
{
	struct fer_cq *cq = to_fer_cq(ibcq);
	struct fer_queue *q = cq->queue;
	unsigned long irq;
	int got = 0;

	if (q->mapped)
		return -EOPNOTSUPP;
	spin_lock_irqsave(&cq->lock, irq);
	while (got < most && (q->buf->consumer_index & q->mask) != q->idx) {
		wc[got++] = *(struct ib_wc *)fer_queue_at(q, q->buf->consumer_index);
		q->buf->consumer_index = (q->buf->consumer_index + 1) & q->mask;
	}
	spin_unlock_irqrestore(&cq->lock, irq);
	return got;
}

static void put_wc(struct fer_queue *q, struct fer_qp *qp, const struct ib_uverbs_wc *wc)
{
	void *place = fer_queue_at(q, q->idx);

	if (q->mapped) {
		memcpy(place, wc, sizeof(*wc));
		return;
	}
	*(struct ib_wc *)place = (struct ib_wc){
		.wr_id = wc->wr_id, .status = wc->status, .opcode = wc->opcode,
		.byte_len = wc->byte_len, .qp = &qp->ib, .ex.imm_data = wc->ex.imm_data,
		.src_qp = wc->src_qp, .wc_flags = wc->wc_flags | IB_WC_WITH_NETWORK_HDR_TYPE,
		.port_num = wc->port_num, .network_hdr_type = RDMA_NETWORK_IPV6,
	};
}

void fer_cq_push(struct fer_cq *cq, struct fer_qp *qp, const struct ib_uverbs_wc *wc,
		 bool solicited)
{
	struct fer_queue *q = cq->queue;
	bool notify = false, overrun = false;
	unsigned long irq;

	spin_lock_irqsave(&cq->lock, irq);
	/* pairs with the reader's release: the entry that it has given back is free */
	if (((q->idx + 1) & q->mask) == (smp_load_acquire(&q->buf->consumer_index) & q->mask)) {
		overrun = !cq->overrun;
		cq->overrun = true;
	} else {
		put_wc(q, qp, wc);
		q->idx = (q->idx + 1) & q->mask;
		/* pairs with the reader's acquire: who sees the index sees the entry */
		smp_store_release(&q->buf->producer_index, q->idx);
	}
	if (cq->notify == IB_CQ_NEXT_COMP || (cq->notify == IB_CQ_SOLICITED &&
					      (solicited || wc->status != IB_WC_SUCCESS))) {
		cq->notify = 0;
		notify = true;
	}
	spin_unlock_irqrestore(&cq->lock, irq);
	if (overrun && cq->ib.event_handler) {
		struct ib_event event = {
			.device = cq->ib.device, .element.cq = &cq->ib, .event = IB_EVENT_CQ_ERR,
		};

		cq->ib.event_handler(&event, cq->ib.cq_context);
	}
	if (notify)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}
