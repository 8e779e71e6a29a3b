// SPDX-License-Identifier: GPL-2.0
/*
 * Rings that the kernel and one process both see. The process may write anything into
 * them at any time: sizes and our own index are kept outside, entries are copied before
 * they are looked at. Users in the kernel have the same rings, not mapped anywhere.
 */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "ferrule_rdma.h"

void fer_mmap_free(struct rdma_user_mmap_entry *entry)
{
	struct fer_queue *q = container_of(entry, struct fer_queue, entry);

	free_pages_exact(q->buf, q->size);
	kfree(q);
}

/* One place stays empty, so that full and empty differ. */
struct fer_queue *fer_queue_create(struct ib_ucontext *uctx, u32 elems, u32 elem_size,
				   struct mminfo *info)
{
	struct fer_queue *q = kzalloc(sizeof(*q), GFP_KERNEL_ACCOUNT);
	u32 slots = roundup_pow_of_two(elems + 1);
	int err;

	if (!q)
		return ERR_PTR(-ENOMEM);
	q->log2 = order_base_2(elem_size);
	q->mask = slots - 1;
	q->size = PAGE_ALIGN(sizeof(struct rxe_queue_buf) + ((size_t)slots << q->log2));
	q->buf = alloc_pages_exact(q->size, GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
	if (!q->buf) {
		kfree(q);
		return ERR_PTR(-ENOMEM);
	}
	q->buf->log2_elem_size = q->log2;
	q->buf->index_mask = q->mask;
	if (!uctx)
		return q;
	q->mapped = true;
	err = rdma_user_mmap_entry_insert(uctx, &q->entry, q->size);
	if (err) {
		free_pages_exact(q->buf, q->size);
		kfree(q);
		return ERR_PTR(err);
	}
	info->offset = rdma_user_mmap_get_offset(&q->entry);
	info->size = q->size;
	return q;
}

/* The process may have the memory longer. */
void fer_queue_destroy(struct fer_queue *queue)
{
	if (queue->mapped)
		rdma_user_mmap_entry_remove(&queue->entry);
	else
		fer_mmap_free(&queue->entry);
}

/*
 * The mapping holds the pages by itself: also when the device goes away, its owner finds there
 * how its requests ended. (What rdma_user_mmap_io() maps would become zeros.)
 */
int fer_mmap(struct ib_ucontext *uctx, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *entry = rdma_user_mmap_entry_get(uctx, vma);
	struct fer_queue *q;
	size_t at;
	int err = 0;

	if (!entry)
		return -EINVAL;
	q = container_of(entry, struct fer_queue, entry);
	for (at = 0; at < q->size && !err; at += PAGE_SIZE)
		err = vm_insert_page(vma, vma->vm_start + at, virt_to_page((u8 *)q->buf + at));
	rdma_user_mmap_entry_put(entry);
	return err;
}
