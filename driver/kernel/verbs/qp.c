// SPDX-License-Identifier: GPL-2.0
/* Queue pairs: their life and their states. What they do: sq.c, req.c, ack.c, resp.c, reply.c. */
#include <linux/slab.h>
#include <rdma/uverbs_ioctl.h>

#include "device/trace.h"

#define FLUSH_EVERY_NS (10 * NSEC_PER_MSEC)

/* ---- references and the lists of the channel ---- */

static void last_put(struct kref *ref)
{
	complete(&container_of(ref, struct fer_qp, ref)->gone);
}

void fer_qp_put(struct fer_qp *qp)
{
	kref_put(&qp->ref, last_put);
}

struct fer_qp *fer_qp_find(struct fer_dev *dev, u32 qpn)
{
	struct fer_qp *qp;

	xa_lock(&dev->qps);
	qp = xa_load(&dev->qps, qpn);
	if (qp)
		kref_get(&qp->ref);
	xa_unlock(&dev->qps);
	return qp;
}

/* The queue pair with that number or the next one, with a reference. */
struct fer_qp *fer_qp_next(struct fer_dev *dev, unsigned long *number)
{
	struct fer_qp *qp;

	xa_lock(&dev->qps);
	qp = xa_find(&dev->qps, number, FER_QPN_MASK, XA_PRESENT);
	if (qp)
		kref_get(&qp->ref);
	xa_unlock(&dev->qps);
	return qp;
}

/* Have it looked at in the next round; a caller outside of one wakes the thread, too. */
void fer_qp_activate(struct fer_qp *qp)
{
	struct fer_channel *channel = qp->dev->channel;
	unsigned long irq;

	spin_lock_irqsave(&channel->qp_lock, irq);
	if (!qp->is_active && !qp->dead) {
		kref_get(&qp->ref);
		qp->is_active = true;
		list_add_tail(&qp->active_node, &channel->active);
	}
	spin_unlock_irqrestore(&channel->qp_lock, irq);
}

/* Have fer_req_timeout() called at deadline_ns, or earlier. Under channel->engine. */
void fer_qp_timer(struct fer_qp *qp, u64 deadline_ns)
{
	struct fer_channel *channel = qp->dev->channel;
	unsigned long irq;

	lockdep_assert_held(&channel->engine);
	spin_lock_irqsave(&channel->qp_lock, irq);
	if (qp->is_timed) {
		qp->deadline_ns = min(qp->deadline_ns, deadline_ns);
	} else if (!qp->dead) {
		kref_get(&qp->ref);
		qp->is_timed = true;
		qp->deadline_ns = deadline_ns;
		list_add_tail(&qp->timed_node, &channel->timed);
	}
	channel->next_timer_ns = min(channel->next_timer_ns, deadline_ns);
	spin_unlock_irqrestore(&channel->qp_lock, irq);
}

static void leave_lists(struct fer_qp *qp)
{
	struct fer_channel *channel = qp->dev->channel;
	unsigned long irq;
	int refs = 0;

	spin_lock_irqsave(&channel->qp_lock, irq);
	qp->dead = true;
	if (qp->is_active) {
		list_del_init(&qp->active_node);
		qp->is_active = false;
		refs++;
	}
	if (qp->is_timed) {
		list_del_init(&qp->timed_node);
		qp->is_timed = false;
		refs++;
	}
	spin_unlock_irqrestore(&channel->qp_lock, irq);
	while (refs--)
		fer_qp_put(qp);
}

/* ---- what is done with it in a round ---- */

bool fer_qp_run(struct fer_qp *qp)
{
	bool more = false;

	fer_assert_locked(qp);
	switch (qp->state) {
	case IB_QPS_ERR:
		fer_sq_flush(qp);
		fer_reply_flush(qp);
		/* receives are posted without a call: look for new ones now and then */
		fer_qp_timer(qp, ktime_get_ns() + FLUSH_EVERY_NS);
		return false;
	case IB_QPS_RTS:
	case IB_QPS_SQD:
		more = fer_reply_run(qp, 16);
		return fer_req_run(qp, 16) || more;
	case IB_QPS_RTR:
		return fer_reply_run(qp, 16);
	default:
		return false;
	}
}

void fer_qp_event(struct fer_qp *qp, enum ib_event_type type)
{
	struct ib_event event = {
		.device = qp->ib.device, .element.qp = &qp->ib, .event = type,
	};

	if (qp->init.event_handler)
		qp->init.event_handler(&event, qp->init.qp_context);
}

/* Nothing more is sent or taken; all that is posted is flushed. Under qp->lock. */
void fer_qp_fail(struct fer_qp *qp, const char *why)
{
	lockdep_assert_held(&qp->lock);
	if (qp->state == IB_QPS_ERR)
		return;
	trace_fer_qp_error(qp, why);
	WRITE_ONCE(qp->state, IB_QPS_ERR);
	qp->req.expires_ns = 0;
	qp->req.wait_until_ns = 0;
	if (qp->ib.srq) {
		if (qp->resp.have_wqe)
			fer_resp_complete(qp, IB_WC_WR_FLUSH_ERR, NULL, 0, 0);
		fer_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
	}
	fer_qp_activate(qp);
}

/* ---- verbs ---- */

static int check_init(struct ib_qp_init_attr *init, bool user)
{
	struct ib_qp_cap *cap = &init->cap;

	if (init->create_flags)
		return -EOPNOTSUPP;
	if (init->qp_type != IB_QPT_RC && init->qp_type != IB_QPT_UC &&
	    init->qp_type != IB_QPT_UD && (user || init->qp_type != IB_QPT_GSI))
		return -EOPNOTSUPP;
	if (!init->send_cq || !init->recv_cq)
		return -EINVAL;
	if (cap->max_send_wr > FER_MAX_QP_WR || cap->max_send_sge > FER_MAX_SGE ||
	    cap->max_inline_data > FER_MAX_INLINE)
		return -EINVAL;
	if (!init->srq && (cap->max_recv_wr > FER_MAX_QP_WR || cap->max_recv_sge > FER_MAX_SGE))
		return -EINVAL;
	return 0;
}

static int create_queues(struct fer_qp *qp, struct ib_ucontext *uctx, struct ib_qp_cap *cap,
			 struct rxe_create_qp_resp *resp)
{
	u32 extra = max3(cap->max_send_sge * (u32)sizeof(struct rxe_sge), cap->max_inline_data, 8u);
	int err;

	qp->req.max_sge = cap->max_send_sge;
	qp->req.max_inline = cap->max_inline_data;
	qp->req.queue = fer_queue_create(uctx, max(cap->max_send_wr, 1u),
					 sizeof(struct rxe_send_wqe) + extra, &resp->sq_mi);
	if (IS_ERR(qp->req.queue))
		return PTR_ERR(qp->req.queue);
	qp->req.wqe = kvcalloc(qp->req.queue->mask + 1, sizeof(*qp->req.wqe), GFP_KERNEL_ACCOUNT);
	if (!qp->req.wqe) {
		err = -ENOMEM;
		goto no_wqe;
	}
	cap->max_send_wr = qp->req.queue->mask; /* so much there is room for */
	if (qp->ib.srq) {
		qp->resp.rq = &to_fer_srq(qp->ib.srq)->rq;
		return 0;
	}
	qp->resp.rq = &qp->resp.own;
	err = fer_rq_init(&qp->resp.own, uctx, cap->max_recv_wr, cap->max_recv_sge, &resp->rq_mi);
	if (!err) {
		cap->max_recv_wr = qp->resp.own.max_wr;
		return 0;
	}
	kvfree(qp->req.wqe);
no_wqe:
	fer_queue_destroy(qp->req.queue);
	return err;
}

static void destroy_queues(struct fer_qp *qp)
{
	fer_queue_destroy(qp->req.queue);
	kvfree(qp->req.wqe);
	if (!qp->ib.srq)
		fer_queue_destroy(qp->resp.own.queue);
}

/* It can be found by its number from now on; that of management is fixed. */
static int number(struct fer_qp *qp)
{
	if (qp->ib.qp_type != IB_QPT_GSI)
		return xa_alloc_cyclic(&qp->dev->qps, &qp->ib.qp_num, qp,
				       XA_LIMIT(16, FER_QPN_MASK), &qp->dev->next_qpn, GFP_KERNEL);
	qp->ib.qp_num = 1;
	return xa_insert(&qp->dev->qps, 1, qp, GFP_KERNEL);
}

int fer_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(ibqp->device);
	struct fer_ucontext *uctx = rdma_udata_to_drv_context(udata, struct fer_ucontext, ib);
	struct rxe_create_qp_resp resp = {};
	struct fer_qp *qp = to_fer_qp(ibqp);
	int err;

	if (udata && udata->outlen < sizeof(resp))
		return -EINVAL;
	err = check_init(init, udata);
	if (err)
		return err;
	err = fer_take(dev, udata, FER_KIND_QP, &qp->owner);
	if (err)
		return err;
	qp->dev = dev;
	qp->init = *init;
	qp->sig_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->ib.srq = init->srq;
	qp->state = IB_QPS_RESET;
	kref_init(&qp->ref);
	init_completion(&qp->gone);
	mutex_init(&qp->lock);
	spin_lock_init(&qp->req.post_lock);
	INIT_LIST_HEAD(&qp->active_node);
	INIT_LIST_HEAD(&qp->timed_node);
	err = create_queues(qp, uctx ? &uctx->ib : NULL, &init->cap, &resp);
	if (err)
		goto put_count;
	qp->init.cap = init->cap;
	err = udata ? ib_copy_to_udata(udata, &resp, sizeof(resp)) : 0;
	if (err)
		goto no_number;
	err = number(qp);
	if (err < 0)
		goto no_number;
	return 0;
no_number:
	destroy_queues(qp);
put_count:
	fer_give(dev, qp->owner, FER_KIND_QP);
	return err;
}

/*
 * The device is taken away from a process: its requests come back now, or never. It cannot post
 * for ever, as so many places as the rings have are looked at. Users in the kernel, who have
 * been told, do not look any more.
 */
static void flush_for_good(struct fer_qp *qp)
{
	u32 i;

	mutex_lock(&qp->dev->channel->engine);
	mutex_lock(&qp->lock);
	if (qp->state != IB_QPS_RESET) {
		fer_qp_fail(qp, "the device goes");
		for (i = 0; i <= qp->req.queue->mask; i += FER_FLUSH)
			fer_sq_flush(qp);
		for (i = 0; i <= qp->resp.rq->queue->mask; i += FER_FLUSH)
			fer_reply_flush(qp);
	}
	mutex_unlock(&qp->lock);
	mutex_unlock(&qp->dev->channel->engine);
}

int fer_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct fer_qp *qp = to_fer_qp(ibqp);

	xa_erase(&qp->dev->qps, ibqp->qp_num);
	if (READ_ONCE(qp->dev->leaving) && qp->req.queue->mapped)
		flush_for_good(qp);
	mutex_lock(&qp->lock);
	WRITE_ONCE(qp->state, IB_QPS_RESET);
	mutex_unlock(&qp->lock);
	leave_lists(qp);
	fer_qp_put(qp);
	wait_for_completion(&qp->gone); /* a round may hold it for a moment */
	destroy_queues(qp);
	fer_give(qp->dev, qp->owner, FER_KIND_QP);
	return 0;
}
