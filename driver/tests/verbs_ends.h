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
static char refused[80];	/* what was last not to be had */

/* As make(), but the device may be gone at any time. */
static inline int try_make(struct ibv_pd *in, struct side *s)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = UNDER_WAY, .max_recv_wr = UNDER_WAY, .max_send_sge = 3,
			 .max_recv_sge = 3 },
	};

	*s = (struct side){ .area = calloc(1, AREA) };
	NEED(s->area);
	s->cq = ibv_create_cq(in->context, 4 * UNDER_WAY, NULL, NULL, 0);
	s->mr = ibv_reg_mr(in, s->area, AREA, ACCESS);
	init.send_cq = init.recv_cq = s->cq;
	if (s->cq)
		s->qp = ibv_create_qp(in, &init);
	if (!s->cq || !s->mr || !s->qp)
		snprintf(refused, sizeof(refused), "an object: %s", strerror(errno));
	return s->cq && s->mr && s->qp;
}

static inline void unmake(struct side *s)
{
	if (s->qp)
		NEED(!ibv_destroy_qp(s->qp));
	if (s->cq)
		NEED(!ibv_destroy_cq(s->cq));
	if (s->mr)
		NEED(!ibv_dereg_mr(s->mr));
	free(s->area);
}

static inline int try_modify(struct side *s, struct ibv_qp_attr *attr, int mask, const char *what)
{
	int err = ibv_modify_qp(s->qp, attr, mask);

	if (err)
		snprintf(refused, sizeof(refused), "%s: %s", what, strerror(err));
	return !err;
}

static inline int try_join(struct side *s, struct side *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = ACCESS };

	if (!try_modify(s, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			IBV_QP_ACCESS_FLAGS, "INIT"))
		return 0;
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .sgid_index = gid_index, .hop_limit = 1 } },
	};
	if (ibv_query_gid(peer->qp->context, 1, gid_index, &attr.ah_attr.grh.dgid)) {
		snprintf(refused, sizeof(refused), "the peer's GID: %s", strerror(errno));
		return 0;
	}
	if (!try_modify(s, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "RTR"))
		return 0;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 4 };
	return try_modify(s, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
}

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

/* What came back. 0: something that ends this queue pair. */
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
