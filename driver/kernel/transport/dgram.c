// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams: one frame each, with the addresses of both ends before the data.
 * Everything runs under channel->engine and qp->lock.
 */
#include <linux/in.h>

#include "verbs/qp.h"

#define GRH 40

/* A datagram: both addresses, then the data. */
int fer_dgram_fill(struct fer_qp *qp, struct fer_swqe *w, struct fer_hdr *hdr, u8 *payload)
{
	struct fer_ah *ah;
	unsigned long irq;

	fer_assert_locked(qp);
	xa_lock_irqsave(&qp->dev->ahs, irq);
	ah = xa_load(&qp->dev->ahs, w->ah_num);
	if (ah && ah->pd == to_fer_pd(qp->ib.pd)) {
		memcpy(payload, &ah->sgid, 16);
		memcpy(payload + 16, &ah->dgid, 16);
	} else {
		ah = NULL;
	}
	xa_unlock_irqrestore(&qp->dev->ahs, irq);
	if (!ah)
		return -EINVAL;
	hdr->op = FER_OP_DGRAM;
	hdr->flags |= FER_FIRST;
	hdr->dqpn = w->dqpn & FER_QPN_MASK;
	hdr->rkey = w->rkey & 0x80000000 ? qp->attr.qkey : w->rkey;
	hdr->len = 32 + w->length;
	hdr->total = hdr->len;
	fer_req_last(w, hdr);
	return fer_req_data(qp, w, 0, payload + 32, w->length);
}

/* A datagram arrives with 40 bytes before it that say where it came from, as RoCE v2 writes them
 * for IPv6: libibverbs answers to them with a GID of that type.
 */
void fer_dgram_take(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	struct ib_grh grh = {
		.version_tclass_flow = cpu_to_be32(6 << 28),
		.next_hdr = IPPROTO_UDP, .hop_limit = 1,
	};
	u32 len;

	fer_assert_locked(qp);
	if (!fer_is_ud(qp) || hdr->len < 32 || hdr->rkey != qp->attr.qkey ||
	    qp->state < IB_QPS_RTR || qp->state > IB_QPS_SQD) {
		fer_count(qp->dev->channel, FER_STAT_WRONG_PEER);
		return;
	}
	len = hdr->len - 32;
	memcpy(&grh.sgid, payload, 16);
	memcpy(&grh.dgid, payload + 16, 16);
	grh.paylen = cpu_to_be16(len);
	if (fer_resp_take(qp)) {
		fer_count(qp->dev->channel, FER_STAT_UC_DROPPED);
		return;
	}
	if (qp->resp.wqe.length < GRH + len) {
		/* a datagram ends no queue pair: the receive waits for the next one */
		fer_count(qp->dev->channel, FER_STAT_UC_DROPPED);
		return;
	}
	if (fer_sge_copy(to_fer_pd(qp->ib.pd), qp->resp.wqe.sge, qp->resp.wqe.num_sge, 0,
			 (u8 *)&grh, GRH, true) ||
	    fer_sge_copy(to_fer_pd(qp->ib.pd), qp->resp.wqe.sge, qp->resp.wqe.num_sge, GRH,
			 payload + 32, len, true)) {
		fer_resp_complete(qp, IB_WC_LOC_PROT_ERR, NULL, 0, 0);
		fer_qp_fail(qp, "a receive names memory that is not there");
		return;
	}
	fer_resp_complete(qp, IB_WC_SUCCESS, hdr, GRH + len, IB_WC_GRH);
}
