// SPDX-License-Identifier: GPL-2.0
/* Completion queues: filled by the link's thread, emptied by user space without a call. */
#include <rdma/uverbs_ioctl.h>

#include "ferrule_rdma.h"

int fer_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr, struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(ibcq->device);
	struct fer_ucontext *uctx = rdma_udata_to_drv_context(udata, struct fer_ucontext, ib);
	struct fer_cq *cq = to_fer_cq(ibcq);
	struct rxe_create_cq_resp resp = {};
	int err;

	if (!udata || attr->flags & ~IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN)
		return -EOPNOTSUPP;
	if (udata->outlen < sizeof(resp) || !attr->cqe || attr->cqe > FER_MAX_CQE ||
	    attr->comp_vector >= ibcq->device->num_comp_vectors)
		return -EINVAL;
	err = fer_take(&dev->num_cq, FER_MAX_CQ);
	if (err)
		return err;
	spin_lock_init(&cq->lock);
	cq->queue = fer_queue_create(&uctx->ib, attr->cqe, sizeof(struct ib_uverbs_wc), &resp.mi);
	if (IS_ERR(cq->queue)) {
		err = PTR_ERR(cq->queue);
		goto put_count;
	}
	err = ib_copy_to_udata(udata, &resp, sizeof(resp));
	if (err)
		goto destroy;
	ibcq->cqe = cq->queue->mask;
	return 0;
destroy:
	fer_queue_destroy(cq->queue);
put_count:
	atomic_dec(&dev->num_cq);
	return err;
}

int fer_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	fer_queue_destroy(to_fer_cq(ibcq)->queue);
	atomic_dec(&to_fer_dev(ibcq->device)->num_cq);
	return 0;
}

int fer_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct fer_cq *cq = to_fer_cq(ibcq);
	struct fer_queue *q = cq->queue;
	int missed = 0;

	spin_lock(&cq->lock);
	/* asked for any, then for solicited ones: any it remains */
	if (cq->notify != IB_CQ_NEXT_COMP)
		cq->notify = flags & IB_CQ_SOLICITED_MASK;
	if (flags & IB_CQ_REPORT_MISSED_EVENTS)
		missed = (READ_ONCE(q->buf->consumer_index) & q->mask) != q->idx;
	spin_unlock(&cq->lock);
	return missed;
}

void fer_cq_push(struct fer_cq *cq, const struct ib_uverbs_wc *wc, bool solicited)
{
	struct fer_queue *q = cq->queue;
	bool notify = false, overrun = false;

	spin_lock(&cq->lock);
	if (((q->idx + 1) & q->mask) == (smp_load_acquire(&q->buf->consumer_index) & q->mask)) {
		overrun = !cq->overrun;
		cq->overrun = true;
	} else {
		memcpy(fer_queue_at(q, q->idx), wc, sizeof(*wc));
		q->idx = (q->idx + 1) & q->mask;
		smp_store_release(&q->buf->producer_index, q->idx);
	}
	if (cq->notify == IB_CQ_NEXT_COMP || (cq->notify == IB_CQ_SOLICITED &&
					      (solicited || wc->status != IB_WC_SUCCESS))) {
		cq->notify = 0;
		notify = true;
	}
	spin_unlock(&cq->lock);
	if (overrun && cq->ib.event_handler) {
		struct ib_event event = {
			.device = cq->ib.device, .element.cq = &cq->ib, .event = IB_EVENT_CQ_ERR,
		};

		cq->ib.event_handler(&event, cq->ib.cq_context);
	}
	if (notify)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}
