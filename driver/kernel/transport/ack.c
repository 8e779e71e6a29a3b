// SPDX-License-Identifier: GPL-2.0
/*
 * Responses to the requester: acknowledgements, data, refusals, or nothing in time.
 * Everything runs under channel->engine and qp->lock.
 */
#include "verbs/qp.h"

static const u32 rnr_us[32] = {
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
	5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760,
	327680, 491520,
};

/* Time limit for an answer: 4.096 us * 2^timeout by the standard, up to 4 times that. */
static u64 answer_ns(struct fer_qp *qp)
{
	return 4 * (4096ull << (qp->attr.timeout & 31));
}

/* From now on an answer is waited for, but not for ever. */
void fer_req_expire(struct fer_qp *qp, u64 now)
{
	fer_assert_locked(qp);
	qp->req.expires_ns = 0;
	if (!qp->attr.timeout)
		return;
	qp->req.expires_ns = now + answer_ns(qp);
	fer_qp_timer(qp, qp->req.expires_ns);
}

void fer_req_arm(struct fer_qp *qp, u64 now)
{
	qp->req.expires_ns = 0;
	if (qp->req.una != qp->req.top)
		fer_req_expire(qp, now);
}

/* All frames up to psn have been carried out, but READs and atomics end with their answer. */
void fer_req_ack(struct fer_qp *qp, u32 psn)
{
	u32 i, una = (psn + 1) & FER_PSN_MASK;

	fer_assert_locked(qp);
	if (!fer_is_rc(qp) || fer_psn_diff(una, qp->req.una) <= 0 ||
	    fer_psn_diff(una, qp->req.top) > 0)
		return;
	for (i = qp->req.cons; i != qp->req.queue->idx; i = (i + 1) & qp->req.queue->mask) {
		struct fer_swqe *w = &qp->req.wqe[i];

		if (!w->started || fer_psn_diff(w->first_psn, una) >= 0)
			break;
		if (fer_wants_answer(w)) {
			if (fer_psn_diff(w->first_psn, qp->req.una) > 0)
				qp->req.una = w->first_psn;
			una = qp->req.una;
			break;
		}
	}
	qp->req.una = una;
	if (fer_psn_diff(una, qp->req.psn) > 0)
		fer_sq_seek(qp, una);
	qp->req.retries = qp->attr.retry_cnt;
	qp->req.rnr_retries = qp->attr.rnr_retry;
	fer_req_arm(qp, ktime_get_ns());
	fer_sq_complete(qp);
}

void fer_req_response(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	struct fer_swqe *w;
	u32 offset = 0, len = 8;
	int err;

	fer_assert_locked(qp);
	fer_req_ack(qp, (hdr->psn - 1) & FER_PSN_MASK);
	if (!fer_is_rc(qp) || hdr->psn != qp->req.una || qp->req.cons == qp->req.queue->idx)
		return;
	w = &qp->req.wqe[qp->req.cons];
	if (!w->started || !fer_wants_answer(w) || fer_psn_diff(hdr->psn, w->first_psn) < 0 ||
	    fer_psn_diff(hdr->psn, w->last_psn) > 0 ||
	    (w->opcode == IB_WR_RDMA_READ) != (hdr->op == FER_OP_READ_RESP))
		return;
	if (hdr->op == FER_OP_READ_RESP) {
		offset = fer_psn_diff(hdr->psn, w->first_psn) * FER_PAYLOAD;
		len = min_t(u32, FER_PAYLOAD, w->length - offset);
	}
	if (hdr->len != len) {
		fer_sq_fail(qp, IB_WC_BAD_RESP_ERR);
		return;
	}
	err = fer_sge_copy(to_fer_pd(qp->ib.pd), w->sge, w->num_sge, offset, payload, len, true);
	if (err) {
		fer_sq_fail(qp, IB_WC_LOC_PROT_ERR);
		return;
	}
	qp->req.una = (hdr->psn + 1) & FER_PSN_MASK;
	if (fer_psn_diff(qp->req.una, qp->req.psn) > 0)
		fer_sq_seek(qp, qp->req.una);
	qp->req.retries = qp->attr.retry_cnt;
	fer_req_arm(qp, ktime_get_ns());
	fer_sq_complete(qp);
}

static void not_ready(struct fer_qp *qp, u32 code)
{
	if (qp->attr.rnr_retry != 7 && !qp->req.rnr_retries) {
		fer_sq_fail(qp, IB_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	if (qp->attr.rnr_retry != 7)
		qp->req.rnr_retries--;
	qp->req.wait_until_ns = ktime_get_ns() + rnr_us[code & 31] * (u64)NSEC_PER_USEC;
	qp->req.expires_ns = 0;
	fer_sq_seek(qp, qp->req.una);
}

void fer_req_nak(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	fer_assert_locked(qp);
	if (!fer_is_rc(qp) || fer_psn_diff(hdr->psn, qp->req.una) < 0 ||
	    fer_psn_diff(hdr->psn, qp->req.top) >= 0)
		return;
	fer_req_ack(qp, (hdr->psn - 1) & FER_PSN_MASK);
	if (qp->state == IB_QPS_ERR)
		return;
	switch (hdr->imm) {
	case FER_NAK_RNR:
		not_ready(qp, hdr->offset);
		break;
	case FER_NAK_SEQ:
		fer_sq_seek(qp, qp->req.una);
		break;
	case FER_NAK_ACCESS:
		fer_sq_fail(qp, IB_WC_REM_ACCESS_ERR);
		break;
	case FER_NAK_OPERATION:
		fer_sq_fail(qp, IB_WC_REM_OP_ERR);
		break;
	default:
		fer_sq_fail(qp, IB_WC_REM_INV_REQ_ERR);
	}
}

/* The queue pair's timer: a pause is over, an answer is late, or there are receives to flush. */
void fer_req_timeout(struct fer_qp *qp, u64 now)
{
	fer_assert_locked(qp);
	if (qp->state == IB_QPS_ERR || (qp->req.wait_until_ns && now >= qp->req.wait_until_ns))
		fer_qp_activate(qp);
	else if (qp->req.wait_until_ns)
		fer_qp_timer(qp, qp->req.wait_until_ns);
	if (!qp->req.expires_ns || qp->state == IB_QPS_ERR)
		return;
	if (now < qp->req.expires_ns) {
		fer_qp_timer(qp, qp->req.expires_ns);
		return;
	}
	fer_count(qp->dev->channel, FER_STAT_QP_TIMEOUT);
	qp->req.expires_ns = 0;
	if (!qp->req.retries) {
		fer_sq_fail(qp, IB_WC_RETRY_EXC_ERR);
		return;
	}
	qp->req.retries--;
	fer_sq_seek(qp, qp->req.una);
	fer_qp_activate(qp);
}
