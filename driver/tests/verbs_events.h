/* SPDX-License-Identifier: GPL-2.0 */
/* Events that a program is told: completions, and a send queue that has drained. */
#ifndef VERBS_EVENTS_H
#define VERBS_EVENTS_H

#include "verbs_side.h"

static void expect_event(struct side *s, int is)
{
	struct pollfd p = { .fd = s->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *unused;

	NEED(poll(&p, 1, is ? (int)(WAIT * 1000) : 0) == is);
	if (is) {
		NEED(!ibv_get_cq_event(s->channel, &cq, &unused));
		ibv_ack_cq_events(cq, 1);
	}
}

static void events(void)
{
	struct side a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);

	join(&a, &b);
	NEED(!ibv_req_notify_cq(b.cq, 1)); /* only for what is solicited */
	post_recv(&b, 0, 10, 1);
	post_recv(&b, 0, 10, 2);
	NEED(!post(&a, IBV_WR_SEND, 0, 10, NULL, 0, 1, 0));
	wait_for(&a, 1, IBV_WC_SUCCESS);
	wait_for(&b, 1, IBV_WC_SUCCESS);
	expect_event(&b, 0);
	NEED(!post(&a, IBV_WR_SEND, 0, 10, NULL, 0, 2, IBV_SEND_SOLICITED));
	expect_event(&b, 1);
	wait_for(&b, 2, IBV_WC_SUCCESS);
	wait_for(&a, 2, IBV_WC_SUCCESS);
	NEED(!ibv_req_notify_cq(a.cq, 0));
	NEED(!post(&a, IBV_WR_RDMA_WRITE, 0, 10, &b, 0, 3, 0));
	expect_event(&a, 1);
	wait_for(&a, 3, IBV_WC_SUCCESS);
	drop(&a);
	drop(&b);
}

static int state(struct side *s, int *draining)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	NEED(!ibv_query_qp(s->qp, &attr, IBV_QP_STATE, &init));
	*draining = attr.sq_draining;
	return attr.qp_state;
}

static void set_state(struct side *s, enum ibv_qp_state to, int notify)
{
	struct ibv_qp_attr attr = { .qp_state = to, .en_sqd_async_notify = notify };

	NEED(!ibv_modify_qp(s->qp, &attr, IBV_QP_STATE | (notify ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0)));
}

static void expect_drained(struct side *s, int is, int ms)
{
	struct pollfd p = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	NEED(poll(&p, 1, ms) == is);
	if (is) {
		NEED(!ibv_get_async_event(context, &event));
		NEED(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == s->qp);
		ibv_ack_async_event(&event);
	}
}

/* What is under way ends, what is posted meanwhile waits, and the owner is told once if it asked. */
static void drained(void)
{
	struct side a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
	struct ibv_wc wc;
	int draining;

	join(&a, &b);
	set_state(&a, IBV_QPS_SQD, 1); /* nothing is under way */
	expect_drained(&a, 1, WAIT * 1000);
	set_state(&a, IBV_QPS_RTS, 0);

	NEED(!post(&a, IBV_WR_SEND, 0, 5000, NULL, 0, 1, 0));
	poll(NULL, 0, 50); /* it is refused, as there is no receive, and asked again */
	set_state(&a, IBV_QPS_SQD, 1);
	NEED(!post(&a, IBV_WR_SEND, 0, 5000, NULL, 0, 2, 0));
	NEED(state(&a, &draining) == IBV_QPS_SQD && draining);
	expect_drained(&a, 0, 50);
	post_recv(&b, 0, 5000, 1);
	post_recv(&b, 0, 5000, 2);
	wait_for(&a, 1, IBV_WC_SUCCESS);
	wait_for(&b, 1, IBV_WC_SUCCESS);
	expect_drained(&a, 1, WAIT * 1000);
	NEED(state(&a, &draining) == IBV_QPS_SQD && !draining);
	poll(NULL, 0, 50);
	NEED(!ibv_poll_cq(a.cq, 1, &wc) && !ibv_poll_cq(b.cq, 1, &wc));

	set_state(&a, IBV_QPS_RTS, 0);
	wait_for(&a, 2, IBV_WC_SUCCESS);
	wait_for(&b, 2, IBV_WC_SUCCESS);
	set_state(&a, IBV_QPS_SQD, 0); /* not asked for */
	expect_drained(&a, 0, 50);
	drop(&a);
	drop(&b);
}

#endif
