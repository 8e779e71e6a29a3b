/* SPDX-License-Identifier: GPL-2.0 */
/* Objects of the driver and who owns them. See docs/driver.md. */
#ifndef FERRULE_RDMA_H
#define FERRULE_RDMA_H

#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/hashtable.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_user_rxe.h>

#include "wire.h"

#define FER_WINDOW	256		/* frames that may be under way; a power of two */
#define FER_MAX_QP	256
#define FER_MAX_QP_WR	4095	/* one less than a power of two: rings keep one place empty */
#define FER_MAX_SGE	8
#define FER_MAX_INLINE	256
#define FER_MAX_RD_ATOM	16
#define FER_MAX_CQ	512
#define FER_MAX_CQE	16383
#define FER_MAX_MR	4096
#define FER_MAX_PD	256
#define FER_MAX_SRQ	64
#define FER_MAX_AH	4096

/* of the user ABI; kernels before 6.2 have no name for it */
#define FER_WR_ATOMIC_WRITE	15
#define FER_WC_ATOMIC_WRITE	9

struct fer_dev;
struct fer_link;

/* ---- the wire: what carries frames (struct fer_wire_ops) ---- */

/* A buffer for one frame. It belongs to its pool, the link or the wire, one at a time. */
struct fer_frame {
	struct list_head node;
	u8 *data;
	u32 size;	/* bytes of the frame in data */
	u64 due;	/* loopback: when it arrives */
};

/*
 * All calls come from the holder of link->engine, but start and stop.
 * Received frames are handed to fer_link_rx(), which takes a frame for good and
 * gives it back by put_rx.
 */
struct fer_wire_ops {
	const char *name;
	int (*start)(struct fer_link *link);
	void (*stop)(struct fer_link *link);
	/* Copy or take up the frame now; data may be changed when it returns. */
	void (*tx)(struct fer_link *link, const u8 *data, u32 size);
	/* Hand over what has come, at most budget frames. Gives how many. */
	int (*poll)(struct fer_link *link, int budget);
	void (*put_rx)(struct fer_link *link, struct fer_frame *frame);
	/* When poll has something again, if that is known: KTIME_MAX if not. */
	u64 (*next_due)(struct fer_link *link);
};

extern const struct fer_wire_ops fer_loopback_ops;

/* ---- counters, shown in debugfs and by `rdma statistic` ---- */

#define FER_STATS(X) \
	X(TX_FRAMES, "tx_frames") \
	X(RX_FRAMES, "rx_frames") \
	X(TX_BYTES, "tx_bytes") \
	X(RX_BYTES, "rx_bytes") \
	X(RESENT, "resent") \
	X(SKIPPED, "skipped") \
	X(RX_BAD_CRC, "rx_bad_crc") \
	X(RX_BAD_FRAME, "rx_bad_frame") \
	X(RX_STALE_EPOCH, "rx_stale_epoch") \
	X(RX_DUPLICATE, "rx_duplicate") \
	X(RX_OUT_OF_ORDER, "rx_out_of_order") \
	X(RX_BEYOND_WINDOW, "rx_beyond_window") \
	X(NO_QP, "rx_no_qp") \
	X(WRONG_PEER, "rx_wrong_peer") \
	X(RNR_NAK, "nak_not_ready") \
	X(SEQ_NAK, "nak_sequence") \
	X(ACCESS_NAK, "nak_access") \
	X(INVALID_NAK, "nak_invalid") \
	X(QP_TIMEOUT, "qp_timeouts") \
	X(UC_DROPPED, "unreliable_dropped")

enum fer_stat {
#define FER_ID(id, text) FER_STAT_##id,
	FER_STATS(FER_ID)
#undef FER_ID
	FER_STAT_COUNT
};

/* ---- the link: a reliable, ordered channel of frames to one peer ---- */

struct fer_txslot {
	struct fer_frame *frame;	/* NULL: empty */
	struct fer_hdr hdr;
	u64 sent;			/* last time, ns */
	u32 tries;
};

struct fer_link {
	struct fer_dev *dev;
	const struct fer_wire_ops *wire;
	void *wire_data;
	struct task_struct *thread;
	wait_queue_head_t wait;
	atomic_t kicked;
	bool up;

	struct mutex engine;			/* all of the following, and the wire */
	u64 sleep_until;			/* of the thread; 0: it is awake */
	u32 epoch;
	u32 tx_next, tx_una, rx_next;
	struct fer_txslot tx[FER_WINDOW];
	struct fer_frame *held[FER_WINDOW];	/* came early, by sequence */
	u32 held_count;
	struct list_head free;			/* frames to fill */
	u8 ack_buf[FER_HDR + 32];
	u32 rx_unacked;
	bool ack_now;
	u64 ack_due;				/* when what is unacked must be acked */
	u64 progress;				/* when the oldest unacked frame last changed */
	u64 rto;
	u64 next_timer;				/* of queue pairs */
	u64 last_busy;

	spinlock_t qp_lock;			/* active, timed and their flags */
	struct list_head active;
	struct list_head timed;

	u64 stats[FER_STAT_COUNT];		/* read anywhere */
};

struct fer_link *fer_link_create(struct fer_dev *dev, const struct fer_wire_ops *wire);
void fer_link_destroy(struct fer_link *link);
void fer_link_kick(struct fer_link *link);
void fer_link_drive(struct fer_link *link);
void fer_link_rx(struct fer_link *link, struct fer_frame *frame);
/* A frame to fill behind FER_HDR, or NULL while the window is full. */
struct fer_frame *fer_link_get(struct fer_link *link);
void fer_link_put(struct fer_link *link, struct fer_frame *frame);
void fer_link_send(struct fer_link *link, struct fer_frame *frame, struct fer_hdr *hdr);

static inline void fer_count(struct fer_link *link, enum fer_stat stat)
{
	WRITE_ONCE(link->stats[stat], link->stats[stat] + 1);
}

/* ---- queues that are shared with user space, in the layout of rdma_user_rxe.h ---- */

struct fer_queue {
	struct rdma_user_mmap_entry entry;
	struct rxe_queue_buf *buf;	/* user space may write anything in here */
	size_t size;
	u32 mask;
	u32 log2;
	u32 idx;			/* our own end; never read back from buf */
};

struct fer_queue *fer_queue_create(struct ib_ucontext *uctx, u32 elems, u32 elem_size,
				   struct mminfo *info);
void fer_queue_destroy(struct fer_queue *queue);
void fer_mmap_free(struct rdma_user_mmap_entry *entry);
int fer_mmap(struct ib_ucontext *uctx, struct vm_area_struct *vma);

static inline void *fer_queue_at(struct fer_queue *q, u32 idx)
{
	return q->buf->data + ((size_t)(idx & q->mask) << q->log2);
}

/* Whether user space has posted something behind our end. */
static inline bool fer_queue_posted(struct fer_queue *q)
{
	return (smp_load_acquire(&q->buf->producer_index) & q->mask) != q->idx;
}

/* ---- objects of verbs ---- */

struct fer_ucontext {
	struct ib_ucontext ib;
};

struct fer_pd {
	struct ib_pd ib;
};

struct fer_ah {
	struct ib_ah ib;
	u32 num;
	union ib_gid sgid, dgid;
	struct fer_pd *pd;
};

struct fer_cq {
	struct ib_cq ib;
	spinlock_t lock;
	struct fer_queue *queue;
	u8 notify;	/* enum ib_cq_notify_flags, 0: not asked for */
	bool overrun;
};

struct fer_mr {
	struct ib_mr ib;
	struct hlist_node node;
	struct kref ref;
	struct completion gone;
	struct fer_pd *pd;
	u32 key;
	int access;
	u64 iova;
	u64 length;
	u32 offset;		/* of iova in the first page */
	u32 npages;
	struct page **pages;
	struct ib_umem *umem;
};

/* Where receives are posted: of one queue pair, or shared. */
struct fer_rq {
	spinlock_t lock;
	struct fer_queue *queue;
	u32 max_sge;
	u32 max_wr;
};

struct fer_srq {
	struct ib_srq ib;
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
	u32 psn, frames, sent;
	u32 rkey, total;
	u64 addr;
	u64 original;		/* atomics: what was there before */
};

struct fer_qp {
	struct ib_qp ib;
	struct fer_dev *dev;
	struct kref ref;		/* the table's, the lists', of whoever looks */
	struct completion gone;
	struct mutex lock;		/* all below but the list nodes */
	struct list_head active_node;
	struct list_head timed_node;
	bool is_active;
	bool is_timed;
	bool dead;			/* being destroyed: on no list any more */
	u64 deadline;			/* of the timer; link->qp_lock */

	enum ib_qp_state state;
	struct ib_qp_attr attr;
	struct ib_qp_init_attr init;
	u32 peer_qpn;
	bool sig_all;

	struct {
		struct fer_queue *queue;	/* its idx: first not yet copied */
		struct fer_swqe *wqe;		/* copies, by ring index */
		u32 max_sge, max_inline;
		u32 cons;		/* oldest that is not complete */
		u32 cur;		/* being sent */
		u32 psn;		/* of the next frame */
		u32 una;		/* oldest frame without answer */
		u32 top;		/* behind the newest frame that was ever sent */
		u32 reads;		/* READs and atomics under way */
		u8 retries, rnr_retries;
		u64 wait;		/* until when: receiver not ready */
		u64 expires;		/* when the oldest frame is late, 0: none is out */
		bool stalled;		/* wqe[cur] has a status that is not yet reported */
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
		bool nak_sent;		/* a gap is reported once */
		bool closed;		/* after nak nothing more is taken */
		struct fer_res res[FER_MAX_RD_ATOM];
		u32 res_head, res_tail;	/* answered up to, put up to */
	} resp;
};

struct fer_dev {
	struct ib_device ib;
	struct list_head node;
	struct net_device *netdev;
	struct fer_link *link;
	struct dentry *debugfs;
	struct xarray qps;
	u32 next_qpn;
	spinlock_t mr_lock;
	DECLARE_HASHTABLE(mrs, 10);
	struct xarray ahs;
	atomic_t num_qp, num_cq, num_mr, num_pd, num_srq, num_ah;
	atomic_t srq_seq;
};

#define FER_TO(name, type) \
static inline struct fer_##name *to_fer_##name(struct type *ib) \
{ return container_of(ib, struct fer_##name, ib); }
FER_TO(dev, ib_device)
FER_TO(pd, ib_pd)
FER_TO(ah, ib_ah)
FER_TO(cq, ib_cq)
FER_TO(mr, ib_mr)
FER_TO(srq, ib_srq)
FER_TO(qp, ib_qp)
#undef FER_TO

/* One more of what is limited; -ENOMEM if there are enough. */
static inline int fer_take(atomic_t *count, int limit)
{
	return atomic_add_unless(count, 1, limit) ? 0 : -ENOMEM;
}

/* cq.c */
int fer_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr, struct ib_udata *udata);
int fer_destroy_cq(struct ib_cq *cq, struct ib_udata *udata);
int fer_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags);
void fer_cq_push(struct fer_cq *cq, const struct ib_uverbs_wc *wc, bool solicited);

/* mr.c */
struct ib_mr *fer_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
			      struct ib_udata *udata);
int fer_dereg_mr(struct ib_mr *mr, struct ib_udata *udata);
/* NULL unless key names memory of pd that holds all of [addr, addr + len) with that access */
struct fer_mr *fer_mr_get(struct fer_pd *pd, u32 key, u64 addr, u64 len, int access);
void fer_mr_put(struct fer_mr *mr);
void fer_mr_copy(struct fer_mr *mr, u64 addr, u8 *buf, u32 len, bool to_mr);
int fer_mr_atomic(struct fer_mr *mr, u64 addr, u8 op, u64 compare_add, u64 swap, u64 *old);
int fer_sge_copy(struct fer_pd *pd, const struct rxe_sge *sge, u32 num, u32 offset, u8 *buf,
		 u32 len, bool to_memory);

/* qp.c */
int fer_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *init, struct ib_udata *udata);
int fer_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int fer_query_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
		 struct ib_qp_init_attr *init);
int fer_destroy_qp(struct ib_qp *qp, struct ib_udata *udata);
int fer_post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
struct fer_qp *fer_qp_find(struct fer_dev *dev, u32 qpn);
void fer_qp_put(struct fer_qp *qp);
void fer_qp_activate(struct fer_qp *qp);
void fer_qp_timer(struct fer_qp *qp, u64 deadline);
void fer_qp_fail(struct fer_qp *qp);
bool fer_qp_run(struct fer_qp *qp);
void fer_qp_event(struct fer_qp *qp, enum ib_event_type type);

/* rq.c */
int fer_rq_init(struct fer_rq *rq, struct ib_ucontext *uctx, u32 max_wr, u32 max_sge,
		struct mminfo *info);
int fer_rq_take(struct fer_rq *rq, struct fer_rwqe *wqe);
int fer_create_srq(struct ib_srq *srq, struct ib_srq_init_attr *init, struct ib_udata *udata);
int fer_modify_srq(struct ib_srq *srq, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		   struct ib_udata *udata);
int fer_query_srq(struct ib_srq *srq, struct ib_srq_attr *attr);
int fer_destroy_srq(struct ib_srq *srq, struct ib_udata *udata);
void fer_srq_taken(struct fer_srq *srq);

/* req.c */
bool fer_req_run(struct fer_qp *qp, int budget);
void fer_req_ack(struct fer_qp *qp, u32 psn);
void fer_req_nak(struct fer_qp *qp, const struct fer_hdr *hdr);
void fer_req_response(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload);
void fer_req_timeout(struct fer_qp *qp, u64 now);
void fer_req_flush(struct fer_qp *qp);
void fer_req_reset(struct fer_qp *qp);

/* resp.c */
void fer_resp_frame(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload);
void fer_resp_dgram(struct fer_qp *qp, const struct fer_hdr *hdr, u8 *payload);
bool fer_resp_run(struct fer_qp *qp, int budget);
void fer_resp_flush(struct fer_qp *qp);
void fer_resp_reset(struct fer_qp *qp);

/* main.c */
void fer_dev_dealloc(struct ib_device *ibdev);

/* verbs.c */
extern const struct ib_device_ops fer_device_ops;

/* netdev.c */
struct net_device *fer_netdev_create(void);
void fer_netdev_destroy(struct net_device *dev);

/* debugfs.c */
void fer_debugfs_init(void);
void fer_debugfs_exit(void);
void fer_debugfs_add(struct fer_dev *dev);
void fer_debugfs_remove(struct fer_dev *dev);

/* loopback.c */
void fer_loopback_debugfs(struct fer_link *link, struct dentry *dir);

#endif
