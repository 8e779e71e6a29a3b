/* SPDX-License-Identifier: GPL-2.0 */
/* Queue pairs: what is in one, and the files that work on it. */
#ifndef FER_QP_H
#define FER_QP_H

#include "ferrule_rdma.h"

/* Receive queue: of one queue pair, or shared. */
struct fer_rq {
	spinlock_t lock;	/* who takes the next one */
	struct fer_queue *queue;
	u32 max_sge;
	u32 max_wr;
};

struct fer_srq {
	struct ib_srq ib;
	struct fer_owner *owner;
	struct fer_rq rq;
	u32 num;
	u32 limit;
};

/* A send request, copied from the shared ring and checked; only this copy is used. */
struct fer_swqe {
	u64 wr_id;
	u8 opcode;		/* enum ib_wr_opcode */
	u8 flags;		/* enum ib_send_flags */
	u8 num_sge;
	u8 status;		/* enum ib_wc_status, once it is known to fail */
	bool inlined;
	bool started;
	u32 imm;
	u32 length;
	u32 first_psn, last_psn;
	u64 addr;
	u32 rkey;
	u64 compare_add, swap;	/* of atomics */
	u32 dqpn, ah_num;	/* of datagrams; rkey is the qkey */
	union {
		struct rxe_sge sge[FER_MAX_SGE];
		u8 data[FER_MAX_INLINE];
	};
};

struct fer_rwqe {
	u64 wr_id;
	u32 num_sge;
	u32 length;
	struct rxe_sge sge[FER_MAX_SGE];
};

/* A READ or atomic that the responder still has to answer, or has answered (atomics). */
struct fer_res {
	u8 op;
	bool again;		/* the request had come before */
	u32 psn, frames, sent;
	u32 rkey, total;
	u64 addr;
	u64 original;		/* atomics: what was there before */
};

enum fer_resp_state {
	FER_RESP_OPEN,
	FER_RESP_GAP,		/* a request is missing or was put off: said once */
	FER_RESP_CLOSED,	/* one was refused: nothing more is taken */
};

struct fer_qp {
	struct ib_qp ib;
	struct fer_dev *dev;
	struct fer_owner *owner;
	struct kref ref;		/* the table's, the lists', of lookups */
	struct completion gone;
	struct mutex lock;		/* all below but the list nodes */
	struct list_head active_node;
	struct list_head timed_node;
	bool is_active;
	bool is_timed;
	bool dead;			/* being destroyed: on no list any more */
	u64 deadline_ns;			/* of the timer; channel->qp_lock */

	enum ib_qp_state state;
	struct ib_qp_attr attr;
	struct ib_qp_init_attr init;
	u32 peer_qpn;
	bool sig_all;

	struct {
		struct fer_queue *queue;	/* its idx: first not yet copied */
		spinlock_t post_lock;		/* among users in the kernel */
		struct fer_swqe *wqe;		/* copies, by ring index */
		u32 max_sge, max_inline;
		u32 cons;		/* oldest that is not complete */
		u32 cur;		/* being sent */
		u32 psn;		/* of the next frame */
		u32 una;		/* oldest frame without answer */
		u32 top;		/* behind the newest frame that was ever sent */
		u32 reads;		/* READs and atomics under way */
		u8 retries, rnr_retries;
		u64 wait_until_ns;		/* until when: receiver not ready */
		u64 expires_ns;		/* when the oldest frame is late, 0: none is out */
		bool stalled;		/* wqe[cur] has a status that is not yet reported */
		bool tell_drained;	/* its owner wants to know when SQD has nothing left */
	} req;

	struct {
		struct fer_rq *rq;
		struct fer_rq own;
		u32 psn;		/* expected */
		bool in_message;
		u8 op;
		u32 offset;
		bool have_wqe;
		struct fer_rwqe wqe;
		bool ack;		/* ack_psn is to be sent */
		u32 ack_psn;
		u8 nak;			/* to be sent behind what is owed */
		u32 nak_psn;
		enum fer_resp_state state;
		struct fer_res res[FER_MAX_OWED];
		u32 res_head, res_tail;	/* answered up to, put up to */
	} resp;
};

FER_TO(srq, ib_srq)
FER_TO(qp, ib_qp)

/* Assert a round of the channel: whatever sends, takes or completes requests runs in one. */
static inline void fer_assert_locked(const struct fer_qp *qp)
{
	lockdep_assert_held(&qp->dev->channel->engine);
	lockdep_assert_held(&qp->lock);
}

static inline bool fer_is_rc(const struct fer_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_RC;
}

static inline bool fer_is_ud(const struct fer_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_UD || qp->ib.qp_type == IB_QPT_GSI;
}

/* A request that ends with data from the peer. */
static inline bool fer_wants_answer(const struct fer_swqe *w)
{
	return w->opcode == IB_WR_RDMA_READ || w->opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
	       w->opcode == IB_WR_ATOMIC_FETCH_AND_ADD;
}

/* All that was taken from the ring is done. */
static inline bool fer_sq_empty(const struct fer_qp *qp)
{
	return qp->req.cons == qp->req.queue->idx;
}

/* READs and atomics that are not answered yet. */
static inline u32 fer_owed(const struct fer_qp *qp)
{
	return qp->resp.res_tail - qp->resp.res_head;
}

/* qp.c */
int fer_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *init, struct ib_udata *udata);
int fer_destroy_qp(struct ib_qp *qp, struct ib_udata *udata);
struct fer_qp *fer_qp_find(struct fer_dev *dev, u32 qpn);
struct fer_qp *fer_qp_next(struct fer_dev *dev, unsigned long *number);
void fer_qp_put(struct fer_qp *qp);
void fer_qp_activate(struct fer_qp *qp);
void fer_qp_timer(struct fer_qp *qp, u64 deadline_ns);
void fer_qp_fail(struct fer_qp *qp, const char *why);
bool fer_qp_run(struct fer_qp *qp);
void fer_qp_event(struct fer_qp *qp, enum ib_event_type type);

/* modify.c */
int fer_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int fer_query_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
		 struct ib_qp_init_attr *init);

/* rq.c */
int fer_rq_init(struct fer_rq *rq, struct ib_ucontext *uctx, u32 max_wr, u32 max_sge,
		struct mminfo *info);
int fer_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
int fer_rq_take(struct fer_rq *rq, struct fer_rwqe *wqe);
int fer_create_srq(struct ib_srq *srq, struct ib_srq_init_attr *init, struct ib_udata *udata);
int fer_modify_srq(struct ib_srq *srq, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		   struct ib_udata *udata);
int fer_query_srq(struct ib_srq *srq, struct ib_srq_attr *attr);
int fer_destroy_srq(struct ib_srq *srq, struct ib_udata *udata);
void fer_srq_taken(struct fer_srq *srq);

/* sq.c: the send queue */
int fer_post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
void fer_sq_fetch(struct fer_qp *qp);
void fer_sq_complete(struct fer_qp *qp);
void fer_sq_drained(struct fer_qp *qp);
void fer_sq_fail(struct fer_qp *qp, enum ib_wc_status status);
void fer_sq_seek(struct fer_qp *qp, u32 psn);
void fer_sq_flush(struct fer_qp *qp);
void fer_sq_reset(struct fer_qp *qp);

/* req.c: what is sent for it */
bool fer_req_run(struct fer_qp *qp, int budget);
void fer_req_last(const struct fer_swqe *w, struct fer_hdr *hdr);
int fer_req_data(struct fer_qp *qp, struct fer_swqe *w, u32 offset, u8 *to, u32 len);

/* ack.c: what comes back, or does not */
void fer_req_arm(struct fer_qp *qp, u64 now);
void fer_req_expire(struct fer_qp *qp, u64 now);
void fer_req_ack(struct fer_qp *qp, u32 psn);
void fer_req_nak(struct fer_qp *qp, const struct fer_hdr *hdr);
void fer_req_response(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload);
void fer_req_timeout(struct fer_qp *qp, u64 now);

/* resp.c: what the peer asks for */
void fer_resp_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload);
int fer_resp_take(struct fer_qp *qp);
void fer_resp_complete(struct fer_qp *qp, enum ib_wc_status status, const struct fer_hdr *hdr,
		       u32 bytes, u32 flags);

/* reply.c: what it is told */
void fer_reply_nak(struct fer_qp *qp, enum fer_nak code, u32 psn);
bool fer_reply_run(struct fer_qp *qp, int budget);
void fer_reply_flush(struct fer_qp *qp);
void fer_reply_reset(struct fer_qp *qp);

/* dgram.c: datagrams, both ways */
int fer_dgram_fill(struct fer_qp *qp, struct fer_swqe *w, struct fer_hdr *hdr, u8 *payload);
void fer_dgram_take(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload);

#endif
