// SPDX-License-Identifier: GPL-2.0
/*
 * A wire that ends where it begins: what is sent comes back to the same channel, through
 * copies, after faults that debugfs asks for. A device on it talks to itself.
 */
#include <linux/debugfs.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "device/trace.h"

#define POOL	(2 * FER_WINDOW + 64)
#define HOLD_NS	(300 * NSEC_PER_USEC)	/* how long a frame stays back that others overtake */

struct loopback {
	struct fer_rail rail;
	struct list_head arriving;	/* by due time */
	struct list_head free;
	u32 random;
	/* faults, in parts of 10,000 but the delay */
	u32 drop, corrupt, duplicate, reorder, delay_us;
};

/* Faults can be repeated: the same seed, the same frames, the same fate. */
static u32 next_random(struct loopback *lo)
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
	return chance && next_random(lo) % 10000 < chance;
}

static struct loopback *of(struct fer_rail *rail)
{
	return container_of(rail, struct loopback, rail);
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
	frame->rail = &lo->rail;
	frame->size = size;
	frame->due_ns = due;
	if (happens(lo, READ_ONCE(lo->corrupt)))
		frame->data[next_random(lo) % size] ^= 1 << (next_random(lo) % 8);
	list_for_each_entry_reverse(before, &lo->arriving, node) {
		if (before->due_ns <= due) {
			place = &before->node;
			break;
		}
	}
	list_add(&frame->node, place);
}

static void loopback_tx(struct fer_rail *rail, struct fer_frame *frame)
{
	struct loopback *lo = of(rail);
	u64 due = ktime_get_ns() + READ_ONCE(lo->delay_us) * (u64)NSEC_PER_USEC;

	if (happens(lo, READ_ONCE(lo->drop)))
		return;
	if (happens(lo, READ_ONCE(lo->reorder)))
		due += HOLD_NS;
	arrive(lo, frame->data, frame->size, due);
	if (happens(lo, READ_ONCE(lo->duplicate)))
		arrive(lo, frame->data, frame->size, due + HOLD_NS);
}

static int loopback_poll(struct fer_rail *rail, int budget)
{
	struct loopback *lo = of(rail);
	u64 now = ktime_get_ns();
	struct fer_frame *frame;
	int got = 0;

	while (got < budget) {
		frame = list_first_entry_or_null(&lo->arriving, struct fer_frame, node);
		if (!frame || frame->due_ns > now)
			break;
		list_del(&frame->node);
		fer_channel_rx(rail->channel, frame);
		got++;
	}
	return got;
}

static u64 loopback_next_due(struct fer_rail *rail)
{
	struct loopback *lo = of(rail);
	struct fer_frame *frame;

	frame = list_first_entry_or_null(&lo->arriving, struct fer_frame, node);
	return frame ? frame->due_ns : KTIME_MAX;
}

static void loopback_put_rx(struct fer_rail *rail, struct fer_frame *frame)
{
	struct loopback *lo = of(rail);

	list_add(&frame->node, &lo->free);
}

/* There is no other end that could have gone: only this session is over, or nothing happened. */
static void loopback_lost(struct fer_rail *rail)
{
	u32 epoch = get_random_u32() | 1;

	rail->up = true;
	rail->silent = 0;
	trace_fer_rail_up(rail->channel, rail->index, epoch, "it ends where it begins");
	fer_session_begin(rail->channel, epoch, FER_WINDOW);
}

/* As a rail that has left, or one that never joined. */
static void loopback_left(struct fer_rail *rail)
{
	struct fer_frame *frame, *next;
	struct loopback *lo = of(rail);

	list_splice_init(&lo->arriving, &lo->free);
	list_for_each_entry_safe(frame, next, &lo->free, node) {
		free_page((unsigned long)frame->data);
		kfree(frame);
	}
	kfree(lo);
}

static const struct fer_wire_ops loopback_ops = {
	.name = "loopback",
	.tx = loopback_tx,
	.poll = loopback_poll,
	.put_rx = loopback_put_rx,
	.next_due = loopback_next_due,
	.lost = loopback_lost,
	.left = loopback_left,
};

static struct loopback *alloc_loopback(void)
{
	struct loopback *lo = kzalloc(sizeof(*lo), GFP_KERNEL);
	int i;

	if (!lo)
		return NULL;
	lo->rail.ops = &loopback_ops;
	lo->random = 0x2545f491;
	INIT_LIST_HEAD(&lo->arriving);
	INIT_LIST_HEAD(&lo->free);
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
	return lo;
no_memory:
	loopback_left(&lo->rail);
	return NULL;
}

/* Wire a channel to itself, for as long as it lives. */
int fer_loopback_join(struct fer_channel *channel)
{
	struct loopback *lo = alloc_loopback();
	int err;

	if (!lo)
		return -ENOMEM;
	mutex_lock(&fer_topology);
	err = fer_rail_join(channel, &lo->rail);
	if (!err)
		fer_rail_up(&lo->rail, get_random_u32() | 1, FER_WINDOW);
	mutex_unlock(&fer_topology);
	if (err)
		loopback_left(&lo->rail);
	return err;
}

void fer_loopback_debugfs(struct fer_channel *channel, struct dentry *dir)
{
	struct loopback *lo;

	if (!channel->rails[0] || channel->rails[0]->ops != &loopback_ops)
		return;
	lo = of(channel->rails[0]);
	debugfs_create_u32("drop", 0600, dir, &lo->drop);
	debugfs_create_u32("corrupt", 0600, dir, &lo->corrupt);
	debugfs_create_u32("duplicate", 0600, dir, &lo->duplicate);
	debugfs_create_u32("reorder", 0600, dir, &lo->reorder);
	debugfs_create_u32("delay_us", 0600, dir, &lo->delay_us);
	fer_inject_debugfs(channel, dir);
}
