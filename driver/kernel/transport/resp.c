// SPDX-License-Identifier: GPL-2.0
/*
 * The responder: carries out what the peer asks for, after checking it.
 * Everything runs under channel->engine and qp->lock.
 */
#include "device/trace.h"

/* ---- refusing ---- */

/* A request that must not be: RC tells the peer and stops, UC drops the message. Always false. */
static bool refuse(struct fer_qp *qp, enum fer_nak code, const struct fer_hdr *hdr)
{
	qp->resp.in_message = false;
	if (fer_is_rc(qp))
		fer_reply_nak(qp, code, hdr->psn);
	else
		fer_count(qp->dev->channel, FER_STAT_UC_DROPPED);
	return false;
}

/* ---- receives ---- */

void fer_resp_complete(struct fer_qp *qp, enum ib_wc_status status, const struct fer_hdr *hdr,
		       u32 bytes, u32 flags)
{
	struct ib_uverbs_wc wc = {
		.wr_id = qp->resp.wqe.wr_id, .status = status, .opcode = IB_WC_RECV,
		.qp_num = qp->ib.qp_num, .port_num = 1, .byte_len = bytes, .wc_flags = flags,
	};

	lockdep_assert_held(&qp->lock);
	qp->resp.have_wqe = false;
	if (hdr) {
		wc.src_qp = hdr->sqpn;
		if (hdr->op == FER_OP_WRITE)
			wc.opcode = IB_WC_RECV_RDMA_WITH_IMM;
		if (hdr->flags & FER_IMM) {
			wc.ex.imm_data = (__force __be32)hdr->imm;
			wc.wc_flags |= IB_WC_WITH_IMM;
		}
	}
	trace_fer_recv_done(qp, &wc);
	fer_cq_push(to_fer_cq(qp->init.recv_cq), qp, &wc, hdr && hdr->flags & FER_SOLICITED);
}

/* 0: qp->resp.wqe is a receive to fill. */
int fer_resp_take(struct fer_qp *qp)
{
	int err;

	fer_assert_locked(qp);
	if (qp->resp.have_wqe)
		return 0;
	err = fer_rq_take(qp->resp.rq, &qp->resp.wqe);
	if (err == -EAGAIN)
		return err;
	qp->resp.have_wqe = true;
	if (qp->ib.srq)
		fer_srq_taken(to_fer_srq(qp->ib.srq));
	return err;
}

/* A receive that cannot take the message: its owner is told, and the queue pair stops. False. */
static bool bad_recv(struct fer_qp *qp, enum ib_wc_status status, enum fer_nak code,
		     const struct fer_hdr *hdr)
{
	fer_resp_complete(qp, status, NULL, 0, 0);
	refuse(qp, code, hdr);
	if (!fer_is_rc(qp))
		fer_qp_fail(qp, ib_wc_status_msg(status));
	return false;
}

/* The receive for a message: qp->resp.wqe. */
static bool take_recv(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	int err = fer_resp_take(qp);

	if (err == -EAGAIN && fer_is_rc(qp)) {
		fer_reply_nak(qp, FER_NAK_RNR, hdr->psn); /* the message goes on from here */
		return false;
	}
	if (err == -EAGAIN)
		return refuse(qp, FER_NAK_RNR, hdr);
	if (err)
		return bad_recv(qp, IB_WC_LOC_QP_OP_ERR, FER_NAK_OPERATION, hdr);
	return true;
}

/* ---- requests with data; true: carried out ---- */

static bool do_send(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	int err;

	if (hdr->flags & FER_FIRST && !take_recv(qp, hdr))
		return false;
	if (hdr->total > qp->resp.wqe.length)
		return bad_recv(qp, IB_WC_LOC_LEN_ERR, FER_NAK_INVALID, hdr);
	err = fer_sge_copy(to_fer_pd(qp->ib.pd), qp->resp.wqe.sge, qp->resp.wqe.num_sge,
			   hdr->offset, payload, hdr->len, true);
	if (err)
		return bad_recv(qp, IB_WC_LOC_PROT_ERR, FER_NAK_OPERATION, hdr);
	if (hdr->flags & FER_LAST)
		fer_resp_complete(qp, IB_WC_SUCCESS, hdr, hdr->total, 0);
	return true;
}

static bool do_write(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	bool tells = hdr->flags & FER_LAST && hdr->flags & FER_IMM;
	struct fer_mr *mr;

	if (!(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_WRITE))
		return refuse(qp, FER_NAK_ACCESS, hdr);
	if (tells && !take_recv(qp, hdr))
		return false;
	if (hdr->total) {
		/* each time for the whole message: keys may go away between its frames */
		mr = fer_mr_get(to_fer_pd(qp->ib.pd), hdr->rkey, hdr->addr, hdr->total,
				IB_ACCESS_REMOTE_WRITE);
		if (!mr)
			return refuse(qp, FER_NAK_ACCESS, hdr);
		fer_mr_copy(mr, hdr->addr + hdr->offset, payload, hdr->len, true);
		fer_mr_put(mr);
	}
	if (tells)
		fer_resp_complete(qp, IB_WC_SUCCESS, hdr, hdr->total, 0);
	return true;
}

/* Pieces of one message follow each other, and messages do not mix. */
static bool continues(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	if (hdr->flags & FER_FIRST)
		return !qp->resp.in_message;
	return qp->resp.in_message && qp->resp.op == hdr->op && qp->resp.offset == hdr->offset;
}

static bool do_piece(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	bool done;

	if (!continues(qp, hdr))
		return refuse(qp, FER_NAK_INVALID, hdr);
	done = hdr->op == FER_OP_SEND ? do_send(qp, hdr, payload) : do_write(qp, hdr, payload);
	if (done) {
		qp->resp.in_message = !(hdr->flags & FER_LAST);
		qp->resp.op = hdr->op;
		qp->resp.offset = hdr->offset + hdr->len;
	}
	return done;
}

/* ---- READ and atomics: put down here, answered by fer_reply_run() ---- */

static struct fer_res *put_res(struct fer_qp *qp)
{
	return &qp->resp.res[qp->resp.res_tail++ % FER_MAX_OWED];
}

/* The peer has as many requests under way as it may. What it asks again does not count. */
static bool owes_all(const struct fer_qp *qp)
{
	u32 count = 0, i;

	for (i = qp->resp.res_head; i != qp->resp.res_tail; i++)
		count += !qp->resp.res[i % FER_MAX_OWED].again;
	return count >= qp->attr.max_dest_rd_atomic;
}

static bool do_read(struct fer_qp *qp, const struct fer_hdr *hdr, bool again)
{
	struct fer_mr *mr = NULL;

	if (!again && owes_all(qp))
		return refuse(qp, FER_NAK_INVALID, hdr);
	if (qp->attr.qp_access_flags & IB_ACCESS_REMOTE_READ && hdr->total)
		mr = fer_mr_get(to_fer_pd(qp->ib.pd), hdr->rkey, hdr->addr, hdr->total,
				IB_ACCESS_REMOTE_READ);
	if (!mr && (hdr->total || !(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_READ)))
		return refuse(qp, FER_NAK_ACCESS, hdr);
	if (mr)
		fer_mr_put(mr);
	*put_res(qp) = (struct fer_res){
		.op = FER_OP_READ, .again = again, .psn = hdr->psn,
		.frames = fer_frames(hdr->total), .rkey = hdr->rkey, .total = hdr->total,
		.addr = hdr->addr,
	};
	return true;
}

static bool do_atomic(struct fer_qp *qp, const struct fer_hdr *hdr, const u8 *payload)
{
	u64 compare_add, swap, old;
	struct fer_mr *mr = NULL;
	int err;

	if (hdr->addr & 7 || owes_all(qp))
		return refuse(qp, FER_NAK_INVALID, hdr);
	if (qp->attr.qp_access_flags & IB_ACCESS_REMOTE_ATOMIC)
		mr = fer_mr_get(to_fer_pd(qp->ib.pd), hdr->rkey, hdr->addr, 8,
				IB_ACCESS_REMOTE_ATOMIC);
	if (!mr)
		return refuse(qp, FER_NAK_ACCESS, hdr);
	memcpy(&compare_add, payload, 8);
	memcpy(&swap, payload + 8, 8);
	err = fer_mr_atomic(mr, hdr->addr, hdr->op, compare_add, swap, &old);
	fer_mr_put(mr);
	if (err)
		return refuse(qp, FER_NAK_INVALID, hdr);
	*put_res(qp) = (struct fer_res){
		.op = hdr->op, .psn = hdr->psn, .frames = 1, .original = old,
	};
	return true;
}

/*
 * An old request again: its answer was lost or late. Nothing is carried out twice, and the
 * places that new requests may need stay free.
 */
static void repeat(struct fer_qp *qp, const struct fer_hdr *hdr)
{
	u32 i;

	switch (hdr->op) {
	case FER_OP_READ:
		if (fer_psn_diff(hdr->psn + fer_frames(hdr->total), qp->resp.psn) <= 0 &&
		    fer_owed(qp) < FER_MAX_RD_ATOM)
			do_read(qp, hdr, true);
		return;
	case FER_OP_CMP_SWAP:
	case FER_OP_FETCH_ADD:
		for (i = 0; i < FER_MAX_OWED; i++) {
			struct fer_res old = qp->resp.res[i];

			if (old.op != hdr->op || old.psn != hdr->psn)
				continue;
			if (fer_owed(qp) < FER_MAX_RD_ATOM) {
				old.sent = 0;
				old.again = true;
				*put_res(qp) = old;
			}
			return;
		}
		return;
	default:
		qp->resp.ack = true;
		qp->resp.ack_psn = (qp->resp.psn - 1) & FER_PSN_MASK;
	}
}

/* ---- frames ---- */

static void rc_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	int ahead = fer_psn_diff(hdr->psn, qp->resp.psn);
	u32 frames = 1;
	bool done;

	if (qp->resp.state == FER_RESP_CLOSED)
		return;
	if (ahead > 0) {
		if (qp->resp.state == FER_RESP_OPEN && !qp->resp.nak)
			fer_reply_nak(qp, FER_NAK_SEQ, qp->resp.psn);
		qp->resp.state = FER_RESP_GAP;
		return;
	}
	if (ahead < 0) {
		repeat(qp, hdr);
		return;
	}
	switch (hdr->op) {
	case FER_OP_SEND:
	case FER_OP_WRITE:
		done = do_piece(qp, hdr, payload);
		break;
	case FER_OP_READ:
	case FER_OP_CMP_SWAP:
	case FER_OP_FETCH_ADD:
		if (qp->resp.in_message) {
			refuse(qp, FER_NAK_INVALID, hdr);
			return;
		}
		done = hdr->op == FER_OP_READ ? do_read(qp, hdr, false) :
						do_atomic(qp, hdr, payload);
		if (hdr->op == FER_OP_READ)
			frames = fer_frames(hdr->total);
		break;
	default:
		refuse(qp, FER_NAK_INVALID, hdr);
		return;
	}
	/* what follows a refused request is dropped, and its gap is known already */
	if (qp->resp.state != FER_RESP_CLOSED)
		qp->resp.state = done ? FER_RESP_OPEN : FER_RESP_GAP;
	if (!done)
		return;
	qp->resp.psn = (qp->resp.psn + frames) & FER_PSN_MASK;
	if (hdr->op == FER_OP_SEND || hdr->op == FER_OP_WRITE) {
		if (hdr->flags & FER_LAST || !(qp->resp.psn % 64)) {
			qp->resp.ack = true;
			qp->resp.ack_psn = hdr->psn;
		}
	}
}

static void uc_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	if (hdr->op != FER_OP_SEND && hdr->op != FER_OP_WRITE)
		return;
	if (hdr->flags & FER_FIRST) {
		if (qp->resp.in_message)
			fer_count(qp->dev->channel, FER_STAT_UC_DROPPED);
		qp->resp.in_message = false;
	} else if (hdr->psn != qp->resp.psn || !qp->resp.in_message) {
		if (qp->resp.in_message)
			fer_count(qp->dev->channel, FER_STAT_UC_DROPPED);
		qp->resp.in_message = false;
		return;
	}
	qp->resp.psn = (hdr->psn + 1) & FER_PSN_MASK;
	do_piece(qp, hdr, payload);
}

void fer_resp_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload)
{
	fer_assert_locked(qp);
	if (fer_is_rc(qp))
		rc_frame(qp, hdr, payload);
	else if (qp->ib.qp_type == IB_QPT_UC)
		uc_frame(qp, hdr, payload);
}
