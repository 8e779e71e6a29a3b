// SPDX-License-Identifier: GPL-2.0
/*
 * A wire that ends where it begins: what is sent comes back to the same link, through
 * copies, after faults that debugfs asks for. A device on it talks to itself.
 */
#include <linux/debugfs.h>
#include <linux/slab.h>

#include "ferrule_rdma.h"

#define POOL	(2 * FER_WINDOW + 64)
#define HOLD	(300 * NSEC_PER_USEC)	/* how long a frame stays back that others overtake */

struct loopback {
	struct fer_link *link;
	struct list_head arriving;	/* by due time */
	struct list_head free;
	u32 random;
	/* faults, in parts of 10,000 but the delay */
	u32 drop, corrupt, duplicate, reorder, delay_us;
};

/* Faults can be repeated: the same seed, the same frames, the same fate. */
static u32 draw(struct loopback *lo)
{
	u32 x = lo->random;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	lo->random = x;
	return x;
}

static bool happens(struct loopback *lo, u32 chance)
{
	return chance && draw(lo) % 10000 < chance;
}

static void arrive(struct loopback *lo, const u8 *data, u32 size, u64 due)
{
	struct fer_frame *frame, *before;
	struct list_head *place = &lo->arriving;

	frame = list_first_entry_or_null(&lo->free, struct fer_frame, node);
	if (!frame)
		return; /* as a ring without descriptors: lost */
	list_del(&frame->node);
	memcpy(frame->data, data, size);
	frame->size = size;
	frame->due = due;
	if (happens(lo, READ_ONCE(lo->corrupt)))
		frame->data[draw(lo) % size] ^= 1 << (draw(lo) % 8);
	list_for_each_entry_reverse(before, &lo->arriving, node) {
		if (before->due <= due) {
			place = &before->node;
			break;
		}
	}
	list_add(&frame->node, place);
}

static void loopback_tx(struct fer_link *link, const u8 *data, u32 size)
{
	struct loopback *lo = link->wire_data;
	u64 due = ktime_get_ns() + READ_ONCE(lo->delay_us) * (u64)NSEC_PER_USEC;

	if (happens(lo, READ_ONCE(lo->drop)))
		return;
	if (happens(lo, READ_ONCE(lo->reorder)))
		due += HOLD;
	arrive(lo, data, size, due);
	if (happens(lo, READ_ONCE(lo->duplicate)))
		arrive(lo, data, size, due + HOLD);
}

static int loopback_poll(struct fer_link *link, int budget)
{
	struct loopback *lo = link->wire_data;
	u64 now = ktime_get_ns();
	struct fer_frame *frame;
	int got = 0;

	while (got < budget) {
		frame = list_first_entry_or_null(&lo->arriving, struct fer_frame, node);
		if (!frame || frame->due > now)
			break;
		list_del(&frame->node);
		fer_link_rx(link, frame);
		got++;
	}
	return got;
}

static u64 loopback_next_due(struct fer_link *link)
{
	struct loopback *lo = link->wire_data;
	struct fer_frame *frame;

	frame = list_first_entry_or_null(&lo->arriving, struct fer_frame, node);
	return frame ? frame->due : KTIME_MAX;
}

static void loopback_put_rx(struct fer_link *link, struct fer_frame *frame)
{
	struct loopback *lo = link->wire_data;

	list_add(&frame->node, &lo->free);
}

static void loopback_stop(struct fer_link *link)
{
	struct loopback *lo = link->wire_data;
	struct fer_frame *frame, *next;

	list_splice_init(&lo->arriving, &lo->free);
	list_for_each_entry_safe(frame, next, &lo->free, node) {
		free_page((unsigned long)frame->data);
		kfree(frame);
	}
	kfree(lo);
	link->wire_data = NULL;
}

static int loopback_start(struct fer_link *link)
{
	struct loopback *lo = kzalloc(sizeof(*lo), GFP_KERNEL);
	int i;

	if (!lo)
		return -ENOMEM;
	lo->link = link;
	lo->random = 0x2545f491;
	INIT_LIST_HEAD(&lo->arriving);
	INIT_LIST_HEAD(&lo->free);
	link->wire_data = lo;
	for (i = 0; i < POOL; i++) {
		struct fer_frame *frame = kzalloc(sizeof(*frame), GFP_KERNEL);

		if (!frame)
			goto no_memory;
		frame->data = (u8 *)get_zeroed_page(GFP_KERNEL);
		if (!frame->data) {
			kfree(frame);
			goto no_memory;
		}
		list_add(&frame->node, &lo->free);
	}
	return 0;
no_memory:
	loopback_stop(link);
	return -ENOMEM;
}

void fer_loopback_debugfs(struct fer_link *link, struct dentry *dir)
{
	struct loopback *lo = link->wire_data;

	debugfs_create_u32("drop", 0600, dir, &lo->drop);
	debugfs_create_u32("corrupt", 0600, dir, &lo->corrupt);
	debugfs_create_u32("duplicate", 0600, dir, &lo->duplicate);
	debugfs_create_u32("reorder", 0600, dir, &lo->reorder);
	debugfs_create_u32("delay_us", 0600, dir, &lo->delay_us);
}

const struct fer_wire_ops fer_loopback_ops = {
	.name = "loopback",
	.start = loopback_start,
	.stop = loopback_stop,
	.tx = loopback_tx,
	.poll = loopback_poll,
	.put_rx = loopback_put_rx,
	.next_due = loopback_next_due,
};
