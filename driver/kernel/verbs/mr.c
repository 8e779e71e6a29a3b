// SPDX-License-Identifier: GPL-2.0
/* Memory regions: pinned pages of a process, found by an unguessable key. */
#include <linux/highmem.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <rdma/ib_umem.h>

#include "ferrule_rdma.h"

#ifdef FER_UMEM_GET_VA
#define umem_get ib_umem_get_va
#else
#define umem_get ib_umem_get
#endif

static DEFINE_MUTEX(atomic_lock); /* atomics are atomic to each other, on all devices */

static void mr_last_put(struct kref *ref)
{
	complete(&container_of(ref, struct fer_mr, ref)->gone);
}

void fer_mr_put(struct fer_mr *mr)
{
	kref_put(&mr->ref, mr_last_put);
}

static struct fer_mr *find_locked(struct fer_dev *dev, u32 key)
{
	struct fer_mr *mr;

	lockdep_assert_held(&dev->mr_lock);
	hash_for_each_possible(dev->mrs, mr, node, key)
		if (mr->key == key)
			return mr;
	return NULL;
}

struct fer_mr *fer_mr_get(struct fer_pd *pd, u32 key, u64 addr, u64 len, int access)
{
	struct fer_dev *dev = to_fer_dev(pd->ib.device);
	struct fer_mr *mr;

	spin_lock(&dev->mr_lock);
	mr = find_locked(dev, key);
	if (mr && (mr->pd != pd || (mr->access & access) != access ||
		   addr < mr->iova || len > mr->length || addr - mr->iova > mr->length - len))
		mr = NULL;
	if (mr)
		kref_get(&mr->ref);
	spin_unlock(&dev->mr_lock);
	return mr;
}

/* Within one page. */
static void copy_piece(struct fer_mr *mr, u64 at, u8 *buf, u32 len, bool to_mr)
{
	struct page *page = mr->pages[at >> PAGE_SHIFT];
	u32 offset = at & ~PAGE_MASK;

	if (to_mr)
		memcpy_to_page(page, offset, buf, len);
	else
		memcpy_from_page(buf, page, offset, len);
}

/* Eight aligned bytes in one piece: a reader never sees half of them. */
static void store_word(struct fer_mr *mr, u64 at, const u8 *buf)
{
	u64 value, *base = kmap_local_page(mr->pages[at >> PAGE_SHIFT]);

	memcpy(&value, buf, sizeof(value));
	WRITE_ONCE(base[(at & ~PAGE_MASK) / sizeof(value)], value);
	kunmap_local(base);
}

/* The caller has checked the range with fer_mr_get(). */
void fer_mr_copy(struct fer_mr *mr, u64 addr, u8 *buf, u32 len, bool to_mr)
{
	u64 at = mr->offset + (addr - mr->iova);
	u32 piece;

	if (to_mr && len == 8 && !(at & 7)) {
		store_word(mr, at, buf);
		return;
	}
	while (len) {
		piece = min_t(u32, len, PAGE_SIZE - (at & ~PAGE_MASK));
		if (to_mr && piece == len && piece > 1) {
			/* programs that wait for the last byte find all others in place */
			copy_piece(mr, at, buf, piece - 1, true);
			smp_wmb();	/* no pair in the kernel: a program polls */
			copy_piece(mr, at + piece - 1, buf + piece - 1, 1, true);
		} else {
			copy_piece(mr, at, buf, piece, to_mr);
		}
		at += piece;
		buf += piece;
		len -= piece;
	}
}

/* addr is aligned and in range. */
int fer_mr_atomic(struct fer_mr *mr, u64 addr, u8 op, u64 compare_add, u64 swap, u64 *old)
{
	u64 at = mr->offset + (addr - mr->iova);
	u64 *word, *base;

	if (at & 7)
		return -EINVAL; /* the mapping itself is not aligned */
	base = kmap_local_page(mr->pages[at >> PAGE_SHIFT]);
	word = base + (at & ~PAGE_MASK) / sizeof(u64);
	mutex_lock(&atomic_lock);
	*old = READ_ONCE(*word);
	if (op == FER_OP_FETCH_ADD)
		WRITE_ONCE(*word, *old + compare_add);
	else if (*old == compare_add)
		WRITE_ONCE(*word, swap);
	mutex_unlock(&atomic_lock);
	kunmap_local(base);
	return 0;
}

/* Memory of a kernel user, under the device's local key: its addresses are the kernel's own. */
static void copy_direct(u64 addr, u8 *buf, u32 len, bool to_memory)
{
	void *memory = (void *)(uintptr_t)addr;

	if (to_memory)
		memcpy(memory, buf, len);
	else
		memcpy(buf, memory, len);
}

/* Copy between buf and the bytes of a scatter list that begin at offset. */
int fer_sge_copy(struct fer_pd *pd, const struct rxe_sge *sge, u32 num, u32 offset, u8 *buf,
		 u32 len, bool to_memory)
{
	struct fer_mr *mr;
	u32 piece;

	for (; num && len; num--, sge++) {
		if (offset >= sge->length) {
			offset -= sge->length;
			continue;
		}
		piece = min(len, sge->length - offset);
		if (!pd->ib.uobject && !sge->lkey) {
			copy_direct(sge->addr + offset, buf, piece, to_memory);
			goto next;
		}
		mr = fer_mr_get(pd, sge->lkey, sge->addr + offset, piece,
				to_memory ? IB_ACCESS_LOCAL_WRITE : 0);
		if (!mr)
			return -EACCES;
		fer_mr_copy(mr, sge->addr + offset, buf, piece, to_memory);
		fer_mr_put(mr);
next:
		buf += piece;
		len -= piece;
		offset = 0;
	}
	return len ? -EINVAL : 0;
}

static int collect_pages(struct fer_mr *mr)
{
	struct sg_page_iter iter;
	u32 n = 0;

	mr->offset = mr->umem->address & ~PAGE_MASK;
	mr->npages = DIV_ROUND_UP_ULL(mr->offset + mr->length, PAGE_SIZE);
	mr->pages = kvmalloc_array(mr->npages, sizeof(*mr->pages), GFP_KERNEL_ACCOUNT);
	if (!mr->pages)
		return -ENOMEM;
	for_each_sgtable_page(&mr->umem->sgt_append.sgt, &iter, 0) {
		if (n == mr->npages)
			break;
		mr->pages[n++] = sg_page_iter_page(&iter);
	}
	return n == mr->npages ? 0 : -EFAULT;
}

/* Give it a random key that no other has. 0 is none. */
static void publish(struct fer_dev *dev, struct fer_mr *mr)
{
	for (;;) {
		u32 key = get_random_u32();

		spin_lock(&dev->mr_lock);
		if (key && !find_locked(dev, key)) {
			mr->key = key;
			hash_add(dev->mrs, &mr->node, key);
			spin_unlock(&dev->mr_lock);
			return;
		}
		spin_unlock(&dev->mr_lock);
	}
}

/* A key for all of the memory is never given. */
struct ib_mr *fer_get_dma_mr(struct ib_pd *pd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

struct ib_mr *fer_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
			      struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(pd->device);
	struct fer_mr *mr;
	int err;

	if (access & ~(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ |
		       IB_ACCESS_REMOTE_ATOMIC | IB_ACCESS_OPTIONAL))
		return ERR_PTR(-EOPNOTSUPP);
	if (!length || iova + length < iova || start + length < start)
		return ERR_PTR(-EINVAL);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL_ACCOUNT);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = fer_take(dev, udata, FER_KIND_MR, &mr->owner);
	if (err)
		goto free;
	mr->umem = umem_get(pd->device, start, length, access);
	if (IS_ERR(mr->umem)) {
		err = PTR_ERR(mr->umem);
		goto put_count;
	}
	kref_init(&mr->ref);
	init_completion(&mr->gone);
	mr->pd = to_fer_pd(pd);
	mr->access = access;
	mr->iova = iova;
	mr->length = length;
	err = collect_pages(mr);
	if (err)
		goto release;
	publish(dev, mr);
	mr->ib.lkey = mr->key;
	mr->ib.rkey = mr->key;
	return &mr->ib;
release:
	kvfree(mr->pages);
	ib_umem_release(mr->umem);
put_count:
	fer_give(dev, mr->owner, FER_KIND_MR);
free:
	kfree(mr);
	return ERR_PTR(err);
}

int fer_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(ibmr->device);
	struct fer_mr *mr = to_fer_mr(ibmr);

	spin_lock(&dev->mr_lock);
	hash_del(&mr->node);
	spin_unlock(&dev->mr_lock);
	fer_mr_put(mr);
	wait_for_completion(&mr->gone); /* a copy may be under way */
	kvfree(mr->pages);
	ib_umem_release(mr->umem);
	fer_give(dev, mr->owner, FER_KIND_MR);
	kfree(mr);
	return 0;
}
