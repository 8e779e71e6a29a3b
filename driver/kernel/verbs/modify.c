// SPDX-License-Identifier: GPL-2.0
/* Queue pairs: what their owners set, and what they are told. */
#include "verbs/qp.h"

static int check_attr(struct fer_qp *qp, struct ib_qp_attr *attr, int mask)
{
	enum ib_qp_state cur = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : qp->state;
	enum ib_qp_state next = mask & IB_QP_STATE ? attr->qp_state : cur;

	lockdep_assert_held(&qp->lock);
	if (cur != qp->state || !ib_modify_qp_is_ok(cur, next, qp->ib.qp_type, mask))
		return -EINVAL;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC && attr->max_rd_atomic > FER_MAX_RD_ATOM)
		return -EINVAL;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC && attr->max_dest_rd_atomic > FER_MAX_RD_ATOM)
		return -EINVAL;
	if (mask & IB_QP_PORT && attr->port_num != 1)
		return -EINVAL;
	if (mask & IB_QP_PKEY_INDEX && attr->pkey_index)
		return -EINVAL;
	return 0;
}

#define TAKE(flag, field) (qp->attr.field = mask & (flag) ? attr->field : qp->attr.field)

static void take_attr(struct fer_qp *qp, struct ib_qp_attr *attr, int mask)
{
	TAKE(IB_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IB_QP_PKEY_INDEX, pkey_index);
	TAKE(IB_QP_PORT, port_num);
	TAKE(IB_QP_QKEY, qkey);
	TAKE(IB_QP_AV, ah_attr);
	TAKE(IB_QP_PATH_MTU, path_mtu);
	TAKE(IB_QP_TIMEOUT, timeout);
	TAKE(IB_QP_RETRY_CNT, retry_cnt);
	TAKE(IB_QP_RNR_RETRY, rnr_retry);
	TAKE(IB_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IB_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IB_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	if (mask & IB_QP_DEST_QPN) {
		qp->attr.dest_qp_num = attr->dest_qp_num & FER_QPN_MASK;
		qp->peer_qpn = qp->attr.dest_qp_num;
	}
	if (mask & IB_QP_RQ_PSN) {
		qp->attr.rq_psn = attr->rq_psn & FER_PSN_MASK;
		qp->resp.psn = qp->attr.rq_psn;
	}
	if (mask & IB_QP_SQ_PSN) {
		qp->attr.sq_psn = attr->sq_psn & FER_PSN_MASK;
		qp->req.psn = qp->attr.sq_psn;
		qp->req.una = qp->attr.sq_psn;
		qp->req.top = qp->attr.sq_psn;
	}
	qp->req.retries = qp->attr.retry_cnt;
	qp->req.rnr_retries = qp->attr.rnr_retry;
}

int fer_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct fer_qp *qp = to_fer_qp(ibqp);
	int err;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	mutex_lock(&qp->lock);
	err = check_attr(qp, attr, mask);
	if (err)
		goto unlock;
	take_attr(qp, attr, mask);
	if (mask & IB_QP_STATE && attr->qp_state != qp->state) {
		if (attr->qp_state == IB_QPS_RESET) {
			fer_sq_reset(qp);
			fer_reply_reset(qp);
			memset(&qp->attr, 0, sizeof(qp->attr));
		}
		if (attr->qp_state == IB_QPS_ERR)
			fer_qp_fail(qp, "its owner says so");
		WRITE_ONCE(qp->state, attr->qp_state);
		qp->req.tell_drained = mask & IB_QP_EN_SQD_ASYNC_NOTIFY &&
				       attr->en_sqd_async_notify;
	}
	fer_sq_drained(qp);
	fer_qp_activate(qp);
unlock:
	mutex_unlock(&qp->lock);
	fer_channel_kick(qp->dev->channel);
	return err;
}

int fer_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		 struct ib_qp_init_attr *init)
{
	struct fer_qp *qp = to_fer_qp(ibqp);

	mutex_lock(&qp->lock);
	*attr = qp->attr;
	attr->qp_state = qp->state;
	attr->cur_qp_state = qp->state;
	attr->sq_draining = qp->state == IB_QPS_SQD && !fer_sq_empty(qp);
	attr->cap = qp->init.cap;
	attr->rq_psn = qp->resp.psn;
	attr->sq_psn = qp->req.psn;
	*init = qp->init;
	mutex_unlock(&qp->lock);
	return 0;
}
