// SPDX-License-Identifier: GPL-2.0
/*
 * Replies of the responder: answers, acknowledgements, refusals.
 * Everything runs under channel->engine and qp->lock.
 */
#include "verbs/qp.h"

void fer_reply_nak(struct fer_qp *qp, enum fer_nak code, u32 psn)
{
	static const enum fer_stat stats[] = {
		[FER_NAK_RNR] = FER_STAT_RNR_NAK, [FER_NAK_SEQ] = FER_STAT_SEQ_NAK,
		[FER_NAK_INVALID] = FER_STAT_INVALID_NAK, [FER_NAK_ACCESS] = FER_STAT_ACCESS_NAK,
		[FER_NAK_OPERATION] = FER_STAT_INVALID_NAK,
	};

	fer_assert_locked(qp);
	fer_count(qp->dev->channel, stats[code]);
	qp->resp.nak = code;
	qp->resp.nak_psn = psn;
	if (code != FER_NAK_RNR && code != FER_NAK_SEQ)
		qp->resp.state = FER_RESP_CLOSED;
}

/* The next frame of an answer. False: the memory may not be read any more. */
static bool fill_answer(struct fer_qp *qp, struct fer_res *res, struct fer_hdr *hdr, u8 *payload)
{
	struct fer_mr *mr;

	hdr->psn = (res->psn + res->sent) & FER_PSN_MASK;
	if (res->op != FER_OP_READ) {
		hdr->op = FER_OP_ATOMIC_RESP;
		hdr->len = 8;
		memcpy(payload, &res->original, 8);
		return true;
	}
	hdr->op = FER_OP_READ_RESP;
	hdr->total = res->total;
	hdr->offset = res->sent * FER_PAYLOAD;
	hdr->len = min_t(u32, FER_PAYLOAD, res->total - hdr->offset);
	if (!hdr->offset)
		hdr->flags |= FER_FIRST;
	if (hdr->offset + hdr->len == hdr->total)
		hdr->flags |= FER_LAST;
	if (!res->total)
		return true;
	mr = fer_mr_get(to_fer_pd(qp->ib.pd), res->rkey, res->addr, res->total,
			IB_ACCESS_REMOTE_READ);
	if (!mr)
		return false;
	fer_mr_copy(mr, res->addr + hdr->offset, payload, hdr->len, false);
	fer_mr_put(mr);
	return true;
}

static void answer(struct fer_qp *qp, struct fer_frame *frame, struct fer_hdr *hdr)
{
	struct fer_res *res = &qp->resp.res[qp->resp.res_head % FER_MAX_OWED];

	if (!fill_answer(qp, res, hdr, frame->data + FER_HDR)) {
		fer_channel_put(qp->dev->channel, frame);
		qp->resp.res_head = qp->resp.res_tail;
		fer_reply_nak(qp, FER_NAK_ACCESS, hdr->psn);
		return;
	}
	fer_channel_send(qp->dev->channel, frame, hdr);
	if (++res->sent == res->frames)
		qp->resp.res_head++;
}

static void send_nak(struct fer_qp *qp, struct fer_frame *frame, struct fer_hdr *hdr)
{
	hdr->op = FER_OP_NAK;
	hdr->psn = qp->resp.nak_psn;
	hdr->imm = qp->resp.nak;
	hdr->offset = qp->resp.nak == FER_NAK_RNR ? qp->attr.min_rnr_timer : 0;
	fer_channel_send(qp->dev->channel, frame, hdr);
	qp->resp.nak = 0;
	if (qp->resp.state == FER_RESP_CLOSED) {
		fer_qp_fail(qp, "a request of the peer is refused");
		fer_qp_event(qp, hdr->imm == FER_NAK_ACCESS ? IB_EVENT_QP_ACCESS_ERR :
						   IB_EVENT_QP_REQ_ERR);
	}
}

/* Send what is owed, in order: answers, then acknowledgements. True: there is more. */
bool fer_reply_run(struct fer_qp *qp, int budget)
{
	fer_assert_locked(qp);
	while (budget-- > 0 && qp->state != IB_QPS_ERR) {
		struct fer_hdr hdr = { .dqpn = qp->peer_qpn, .sqpn = qp->ib.qp_num };
		struct fer_frame *frame;

		if (!fer_owed(qp) && !qp->resp.ack && !qp->resp.nak)
			return false;
		frame = fer_channel_get(qp->dev->channel);
		if (!frame)
			return qp->dev->channel->up;
		if (fer_owed(qp)) {
			answer(qp, frame, &hdr);
		} else if (qp->resp.ack) {
			hdr.op = FER_OP_ACK;
			hdr.psn = qp->resp.ack_psn;
			qp->resp.ack = false;
			fer_channel_send(qp->dev->channel, frame, &hdr);
		} else {
			send_nak(qp, frame, &hdr);
		}
	}
	return qp->state != IB_QPS_ERR;
}

/* As fer_sq_flush(), for receives. */
void fer_reply_flush(struct fer_qp *qp)
{
	int most;

	fer_assert_locked(qp);
	if (qp->resp.have_wqe)
		fer_resp_complete(qp, IB_WC_WR_FLUSH_ERR, NULL, 0, 0);
	if (qp->ib.srq)
		return;
	for (most = FER_FLUSH; most; most--) {
		if (fer_rq_take(qp->resp.rq, &qp->resp.wqe) == -EAGAIN)
			return;
		fer_resp_complete(qp, IB_WC_WR_FLUSH_ERR, NULL, 0, 0);
	}
	fer_qp_activate(qp);
}

void fer_reply_reset(struct fer_qp *qp)
{
	lockdep_assert_held(&qp->lock);
	if (!qp->ib.srq)
		fer_queue_forget(qp->resp.own.queue);
	qp->resp.in_message = false;
	qp->resp.have_wqe = false;
	qp->resp.ack = false;
	qp->resp.nak = 0;
	qp->resp.state = FER_RESP_OPEN;
	qp->resp.res_head = 0;
	qp->resp.res_tail = 0;
	memset(qp->resp.res, 0, sizeof(qp->resp.res));
}
