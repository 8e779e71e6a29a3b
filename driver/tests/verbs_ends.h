/* SPDX-License-Identifier: GPL-2.0 */
/* For tests in which devices or processes go away: ends that count what they posted and what came back. */
#ifndef VERBS_ENDS_H
#define VERBS_ENDS_H

#include "verbs_side.h"

#define UNDER_WAY	12
#define SLOT	(64 << 10)

/*
 * What was posted counts when a later call to the same device succeeds: only then was the device
 * there when it was posted.
 */
struct end {
	struct side s;
	uint64_t sent, maybe_sent, received, maybe_received;	/* posted, and perhaps posted */
	uint64_t sends_back, receives_back;
};

static unsigned long done, flushed;
/* ---- traffic ---- */

/* One of each three a SEND, in the place of its number; the peer has a receive for it. */
static inline int try_send(struct end *e, struct side *peer)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	uint64_t id = e->sent;
	uint32_t at = id % UNDER_WAY * SLOT;

	e->maybe_sent++;
	if (post(&e->s, ops[id % 3], at, next_random() % SLOT, peer, at, id, 0))
		return 0;
	e->sent += e->maybe_sent;
	e->received += e->maybe_received;
	e->maybe_sent = e->maybe_received = 0;
	return 1;
}

static inline void receive(struct end *e)
{
	post_recv(&e->s, AREA / 2, SLOT, 1000000 + e->received + e->maybe_received);
	e->maybe_received++;
}

/* Take the completions that came back. 0: one that ends this queue pair. */
static inline int look(struct end *e)
{
	struct ibv_wc wc;
	int good = 1, got;

	while ((got = ibv_poll_cq(e->s.cq, 1, &wc)) == 1) {
		if (wc.wr_id >= 1000000)
			NEED(wc.wr_id == 1000000 + e->receives_back++);
		else
			NEED(wc.wr_id == e->sends_back++);
		good &= !wc.status;
		if (wc.status)
			flushed++;
		else
			done++;
	}
	NEED(!got);
	NEED(e->sends_back <= e->sent + e->maybe_sent);
	NEED(e->receives_back <= e->received + e->maybe_received);
	return good;
}

/* Keep requests of each kind under way. 0: this queue pair is at its end. */
static inline int keep_going(struct end *e, struct side *peer)
{
	if (!look(e))
		return 0;
	while (e->received + e->maybe_received - e->receives_back < UNDER_WAY)
		receive(e);
	while (e->sent - e->sends_back < UNDER_WAY / 2)
		if (!try_send(e, peer))
			return 0;
	return 1;
}

static inline int all_back(const struct end *e)
{
	return e->sends_back >= e->sent && e->receives_back >= e->received;
}

/* Every request comes back. Who has nothing under way does not see that the peer failed: it is told. */
static inline void wait_back(struct end *e)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	double begin = now();

	while (!all_back(e)) {
		look(e);
		if (e->sends_back >= e->sent)
			ibv_modify_qp(e->s.qp, &attr, IBV_QP_STATE);
		if (now() > begin + WAIT)
			fail("%s: after %g s %llu of %llu (+%llu) sends and %llu of %llu (+%llu) receives are back",
			     ibv_get_device_name(e->s.qp->context->device), WAIT,
			     (unsigned long long)e->sends_back, (unsigned long long)e->sent,
			     (unsigned long long)e->maybe_sent,
			     (unsigned long long)e->receives_back, (unsigned long long)e->received,
			     (unsigned long long)e->maybe_received);
	}
}

#endif
