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
