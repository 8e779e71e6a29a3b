/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Objects of the driver and who owns them. See docs/driver.md.
 *
 * Headers include each other one way: wire, channel, this one, qp and tb. Calls go in circles by
 * intent: a device owns its channel, whose rounds run the queue pairs, which send over it.
 */
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

#include "channel/channel.h"

#define FER_HOST_ID	16		/* bytes */
#define FER_MAX_QP	256
#define FER_MAX_QP_WR	4095	/* one less than a power of two: rings keep one place empty */
#define FER_MAX_SGE	8
#define FER_MAX_INLINE	256
#define FER_MAX_RD_ATOM	16
#define FER_FLUSH	64	/* requests of a queue pair that come back in one round */
#define FER_MAX_OWED	(2 * FER_MAX_RD_ATOM)	/* answers: to requests, and to the same again */
#define FER_MAX_CQ	512
#define FER_MAX_CQE	16383
#define FER_MAX_MR	4096
#define FER_MAX_PD	256
#define FER_MAX_SRQ	64
#define FER_MAX_AH	4096

/* of the user ABI; kernels before 6.2 have no name for it */
#define FER_WR_ATOMIC_WRITE	15
#define FER_WC_ATOMIC_WRITE	9

/* ---- queues that are shared with user space, in the layout of rdma_user_rxe.h ---- */

struct fer_queue {
	struct rdma_user_mmap_entry entry;
	struct rxe_queue_buf *buf;	/* user space may write anything in here */
	bool mapped;			/* by a process; else a queue of a kernel user */
	size_t size;
	u32 mask;
	u32 log2;
	u32 idx;			/* our own end; never read back from buf */
};

/* Without uctx: for a user in the kernel. */
struct fer_queue *fer_queue_create(struct ib_ucontext *uctx, u32 elems, u32 elem_size,
				   struct mminfo *info);
void fer_queue_destroy(struct fer_queue *queue);
void fer_mmap_free(struct rdma_user_mmap_entry *entry);
int fer_mmap(struct ib_ucontext *uctx, struct vm_area_struct *vma);

static inline void *fer_queue_at(struct fer_queue *q, u32 idx)
{
	return q->buf->data + ((size_t)(idx & q->mask) << q->log2);
}

/* Whether its owner has posted something behind our end. */
static inline bool fer_queue_posted(struct fer_queue *q)
{
	/* pairs with the poster's release: who sees the index sees the entry */
	return (smp_load_acquire(&q->buf->producer_index) & q->mask) != q->idx;
}

/* Forget what is posted. */
static inline void fer_queue_forget(struct fer_queue *q)
{
	/* pair with the poster's release and acquire: nothing of it is read any more */
	q->idx = smp_load_acquire(&q->buf->producer_index) & q->mask;
	smp_store_release(&q->buf->consumer_index, q->idx); /* as above */
}

/* The owner's end, for owners in the kernel: where to put the next entry, NULL if it is full. */
static inline void *fer_queue_room(struct fer_queue *q)
{
	u32 next = (q->buf->producer_index + 1) & q->mask;

	/* pairs with the reader's release: the entry that it has given back is free */
	if (next == (smp_load_acquire(&q->buf->consumer_index) & q->mask))
		return NULL;
	return fer_queue_at(q, q->buf->producer_index);
}

static inline void fer_queue_post(struct fer_queue *q)
{
	/* pairs with the reader's acquire: who sees the index sees the entry */
	smp_store_release(&q->buf->producer_index, (q->buf->producer_index + 1) & q->mask);
}

/* ---- objects of verbs ---- */

/* Kinds of objects that are counted, for all of a device and for each process. */
enum fer_kind {
	FER_KIND_QP,
	FER_KIND_CQ,
	FER_KIND_MR,
	FER_KIND_PD,
	FER_KIND_SRQ,
	FER_KIND_AH,
	FER_KINDS
};

struct fer_ucontext {
	struct ib_ucontext ib;
	struct fer_owner *owner;
};

struct fer_pd {
	struct ib_pd ib;
	struct fer_owner *owner;	/* whose share it counts to; NULL: the kernel's */
};

struct fer_ah {
	struct ib_ah ib;
	struct fer_owner *owner;
	u32 num;
	union ib_gid sgid, dgid;
	struct fer_pd *pd;
};

struct fer_cq {
	struct ib_cq ib;
	struct fer_owner *owner;
	spinlock_t lock;	/* the queue's end, and what follows it */
	struct fer_queue *queue;
	u8 notify;	/* enum ib_cq_notify_flags, 0: not asked for */
	bool overrun;
};

struct fer_mr {
	struct ib_mr ib;
	struct fer_owner *owner;
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
	struct list_head node;		/* fer_topology */
	u8 peer[FER_HOST_ID];		/* who is at the other end; zeros: itself */
	struct net_device *netdev;
	struct fer_channel *channel;
	struct dentry *debugfs;
	bool leaving;			/* processes are about to lose it */
	struct xarray qps;
	u32 next_qpn;
	spinlock_t mr_lock;	/* mrs */
	DECLARE_HASHTABLE(mrs, 10);
	struct xarray ahs;
	atomic_t count[FER_KINDS];
	struct mutex owner_lock;	/* owners */
	struct list_head owners;
	atomic_t srq_seq;
};

#define FER_TO(name, type) \
static inline struct fer_##name *to_fer_##name(struct type *ib) \
{ return container_of(ib, struct fer_##name, ib); }
FER_TO(dev, ib_device)
FER_TO(ucontext, ib_ucontext)
FER_TO(pd, ib_pd)
FER_TO(ah, ib_ah)
FER_TO(cq, ib_cq)
FER_TO(mr, ib_mr)

/* A device has a name as soon as it is registered; its rail may be up before. */
static inline const char *fer_dev_name(const struct fer_dev *dev)
{
	return dev_name(&dev->ib.dev) ?: "?";
}

/* quota.c */
int fer_owner_join(struct ib_ucontext *uctx, struct ib_udata *udata);
void fer_owner_leave(struct ib_ucontext *uctx);
/* One more; -ENOMEM if the device or the process has enough. *whose: for fer_give(). */
int fer_take(struct fer_dev *dev, struct ib_udata *udata, enum fer_kind kind,
	     struct fer_owner **whose);
void fer_give(struct fer_dev *dev, struct fer_owner *owner, enum fer_kind kind);
void fer_owners_show(struct fer_dev *dev, struct seq_file *file);

/* cq.c */
int fer_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr, struct ib_udata *udata);
int fer_destroy_cq(struct ib_cq *cq, struct ib_udata *udata);
int fer_poll_cq(struct ib_cq *cq, int most, struct ib_wc *wc);
int fer_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags);
void fer_cq_push(struct fer_cq *cq, struct fer_qp *qp, const struct ib_uverbs_wc *wc,
		 bool solicited);

/* mr.c */
struct ib_mr *fer_get_dma_mr(struct ib_pd *pd, int access);
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

/* device.c */
extern struct ib_client fer_client;
void fer_dev_dealloc(struct ib_device *ibdev);
void fer_dev_remove_all(void);
struct fer_dev *fer_dev_find(const u8 *peer);
int fer_dev_add(const u8 *peer, const char *name, const u8 *mac, struct device *parent);
void fer_dev_remove(struct fer_dev *dev);

/* verbs.c */
extern const struct ib_device_ops fer_device_ops;

/* netdev.c */
struct net_device *fer_netdev_create(const char *name, const u8 *mac);
void fer_netdev_destroy(struct net_device *dev);

/* debugfs.c */
extern struct dentry *fer_debugfs;
void fer_debugfs_add(struct fer_dev *dev);
void fer_debugfs_remove(struct fer_dev *dev);

/* loopback.c */
int fer_loopback_join(struct fer_channel *channel);
void fer_loopback_debugfs(struct fer_channel *channel, struct dentry *dir);

/* inject.c */
void fer_inject_debugfs(struct fer_channel *channel, struct dentry *dir);

/* service.c; nothing without CONFIG_USB4 */
#ifdef FER_USB4
int fer_service_init(void);
void fer_service_exit(void);
#else
static inline int fer_service_init(void)
{
	return 0;
}

static inline void fer_service_exit(void)
{
}
#endif

#endif
