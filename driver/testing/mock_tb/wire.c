// SPDX-License-Identifier: GPL-2.0
/* The cable's two directions: rate, delay, and faults, which happen to each Nth frame. */
#include <linux/io.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "mock.h"

#define MOST_ON_WIRE 1024
#define RETRY_NS (1000 * 1000)

#define SETTING(type, name, first, what) \
	static type name = first; module_param(name, type, 0644); MODULE_PARM_DESC(name, what)
#define COUNTER(name, what) \
	static ulong name; module_param(name, ulong, 0444); MODULE_PARM_DESC(name, what)

SETTING(uint, delay_us, 0, "how long a frame is under way, in microseconds");
SETTING(uint, rate_mbps, 0, "speed in each direction, in Mb/s (0: as fast as it goes)");
SETTING(uint, drop_every, 0, "lose each Nth frame (0: none)");
SETTING(uint, corrupt_every, 0, "a wrong bit in each Nth frame, which arrives as a CRC error (0: none)");
SETTING(uint, duplicate_every, 0, "each Nth frame arrives twice (0: none)");
SETTING(uint, reorder_every, 0, "each Nth frame arrives behind the next one, if there is one (0: none)");
SETTING(uint, lose_interrupts_every, 0, "the driver is not told of each Nth frame (0: it is told of all)");
SETTING(int, mute, -1, "nothing arrives that this host (0 or 1) sends (-1: all does)");
SETTING(int, stall_tx, -1, "this host's Tx rings stand still (-1: none)");
SETTING(int, stall_rx, -1, "this host's Rx rings stand still (-1: none)");

COUNTER(frames, "that were sent");
COUNTER(bytes, "that arrived");
COUNTER(dropped, "frames that were lost on purpose");
COUNTER(no_buffer, "frames that were lost because the receiver had no buffer, and no flow control");
COUNTER(no_path, "frames that were lost because no path led anywhere");

DEFINE_MUTEX(mock_wire_lock);

struct flying {
	struct list_head node;
	u64 due;
	int path;
	u16 size;
	u8 sof, eof;
	bool overtaken;
	u8 data[];
};

static unsigned long drops, corruptions, duplicates, reorders, interrupts;	/* mock_wire_lock */

static bool befalls(unsigned int every, unsigned long *count)
{
	return every && ++*count % every == 0;
}

/* The path's HopID on the cable, or a negative number. */
static int path_of(const struct mock_ring *tx)
{
	const struct mock_path *path;

	for (path = tx->side->paths; path < tx->side->paths + MOCK_PATHS; path++)
		if (path->on && path->tx_ring == tx->ring.hop)
			return path->tx_path;
	return -ENOENT;
}

static struct mock_ring *receiver(struct mock_side *side, int hopid)
{
	const struct mock_path *path;
	struct mock_ring *ring;

	for (path = side->paths; path < side->paths + MOCK_PATHS; path++) {
		if (!path->on || path->rx_path != hopid)
			continue;
		list_for_each_entry(ring, &side->rings, node)
			if (!ring->ring.is_tx && ring->ring.hop == path->rx_ring)
				return ring;
	}
	return NULL;
}

static struct ring_frame *first_waiting(struct tb_ring *ring, bool take)
{
	struct ring_frame *frame = NULL;
	unsigned long flags;

	spin_lock_irqsave(&ring->lock, flags);
	if (ring->running)
		frame = list_first_entry_or_null(&ring->queue, struct ring_frame, list);
	if (frame && take)
		list_del_init(&frame->list);
	spin_unlock_irqrestore(&ring->lock, flags);
	return frame;
}

/* Put a frame on the wire, and give it back to its driver. False: there is no memory now. */
static bool send(struct mock_ring *tx, u64 now)
{
	struct mock_side *side = tx->side;
	struct ring_frame *frame = first_waiting(&tx->ring, false);
	size_t size = mock_frame_size(frame);
	struct flying *flying = kmalloc(sizeof(*flying) + size, GFP_KERNEL);

	if (!flying)
		return false;
	/* Only we and tb_ring_stop() take frames of a Tx ring away, both under our lock. */
	first_waiting(&tx->ring, true);
	side->wire_free = max(side->wire_free, now);
	if (rate_mbps)
		side->wire_free += div_u64((u64)size * 8000, rate_mbps);
	*flying = (struct flying) {
		.due = side->wire_free + delay_us * 1000ULL,
		.path = path_of(tx),
		.size = size,
		.sof = frame->sof,
		.eof = frame->eof,
	};
	memcpy(flying->data, phys_to_virt(frame->buffer_phy), size);
	list_add_tail(&flying->node, &side->wire);
	side->on_wire++;
	frames++;
	if (tx->ring.start_poll)	/* its driver polls for what has left */
		mock_ring_done(tx, frame);
	else if (frame->callback)
		frame->callback(&tx->ring, frame, false);
	return true;
}

bool mock_is_mute(const struct mock_side *side)
{
	return READ_ONCE(mute) == side->index;
}

/* Fill the receiver's next buffer. False: it has none, and flow control holds the sender. */
static bool fill(struct mock_ring *rx, struct flying *flying)
{
	struct tb_ring *ring = &rx->ring;
	struct ring_frame *frame = NULL;
	unsigned long flags;
	bool wanted, hold;

	spin_lock_irqsave(&ring->lock, flags);
	wanted = ring->running && (ring->sof_mask & BIT(flying->sof)) &&
		 (ring->eof_mask & BIT(flying->eof));
	if (wanted)
		frame = list_first_entry_or_null(&ring->queue, struct ring_frame, list);
	hold = wanted && !frame && (ring->flags & RING_FLAG_E2E);
	if (frame) {
		bool corrupt = befalls(corrupt_every, &corruptions);
		u8 *buffer = phys_to_virt(frame->buffer_phy);

		memcpy(buffer, flying->data, flying->size);
		if (corrupt)	/* here only: it may arrive once more */
			buffer[flying->size / 2] ^= 1;
		frame->size = flying->size;
		frame->sof = flying->sof;
		frame->eof = flying->eof;
		frame->flags = RING_DESC_COMPLETED | (corrupt ? RING_DESC_CRC_ERROR : 0);
		list_move_tail(&frame->list, &rx->filled);
		bytes += flying->size;
	}
	spin_unlock_irqrestore(&ring->lock, flags);
	if (!frame && !hold)
		no_buffer++;
	if (frame && !befalls(lose_interrupts_every, &interrupts))
		mock_ring_notify(rx);
	return !hold;
}

/* False: it waits at the receiver. */
static bool arrive(struct mock_side *side, struct flying *flying)
{
	struct mock_ring *rx = flying->path < 0 ? NULL : receiver(side->peer, flying->path);

	if (!rx) {
		no_path++;
		return true;
	}
	if (stall_rx == side->peer->index)
		return false;
	if (mock_is_mute(side) || befalls(drop_every, &drops)) {
		dropped++;
		return true;
	}
	if (!fill(rx, flying))
		return false;
	if (befalls(duplicate_every, &duplicates))
		fill(rx, flying);
	return true;
}

static void forget(struct mock_side *side, struct flying *flying)
{
	list_del(&flying->node);
	side->on_wire--;
	kfree(flying);
}

/* What is due arrives. Returns when to look again, or 0: when something else happens. */
static u64 deliver(struct mock_side *side)
{
	struct flying *flying, *next;

	while ((flying = list_first_entry_or_null(&side->wire, struct flying, node))) {
		if (flying->due > ktime_get_ns())
			return flying->due;
		if (!list_is_last(&flying->node, &side->wire) && !flying->overtaken &&
		    befalls(reorder_every, &reorders)) {
			next = list_next_entry(flying, node);
			next->due = flying->due;
			flying->overtaken = true;
			list_move(&flying->node, &next->node);
			continue;
		}
		if (!arrive(side, flying))
			return stall_rx >= 0 ? ktime_get_ns() + RETRY_NS : 0;
		forget(side, flying);
	}
	return 0;
}

/* Tx rings empty onto the wire as its rate allows. Returns as deliver(). */
static u64 collect(struct mock_side *side)
{
	struct mock_ring *tx;
	u64 now;

	if (stall_tx == side->index)
		return ktime_get_ns() + RETRY_NS;
	list_for_each_entry(tx, &side->rings, node) {
		while (tx->ring.is_tx && first_waiting(&tx->ring, false)) {
			now = ktime_get_ns();
			if (rate_mbps && side->wire_free > now)
				return side->wire_free;
			if (side->on_wire >= MOST_ON_WIRE)
				return 0;	/* deliver() makes room */
			if (!send(tx, now))
				return now + RETRY_NS;
		}
	}
	return 0;
}

static void pump(struct work_struct *work)
{
	struct mock_side *side = container_of(work, struct mock_side, pump);
	u64 sending, arriving;
	bool full;

	mutex_lock(&mock_wire_lock);
	do {
		sending = collect(side);
		full = side->on_wire >= MOST_ON_WIRE;
		arriving = deliver(side);
	} while (full && side->on_wire < MOST_ON_WIRE);
	mutex_unlock(&mock_wire_lock);
	if (sending && (!arriving || sending < arriving))
		arriving = sending;
	if (arriving)
		hrtimer_start(&side->timer, ns_to_ktime(arriving), HRTIMER_MODE_ABS);
}

static enum hrtimer_restart look_again(struct hrtimer *timer)
{
	mock_kick(container_of(timer, struct mock_side, timer));
	return HRTIMER_NORESTART;
}

/* The link is gone: what is under way is lost, and all paths. */
void mock_wire_clear(struct mock_side *side)
{
	struct flying *flying, *next;

	mutex_lock(&mock_wire_lock);
	list_for_each_entry_safe(flying, next, &side->wire, node)
		forget(side, flying);
	memset(side->paths, 0, sizeof(side->paths));
	mutex_unlock(&mock_wire_lock);
}

void mock_wire_init(struct mock_side *side)
{
	INIT_LIST_HEAD(&side->rings);
	INIT_LIST_HEAD(&side->wire);
	INIT_WORK(&side->pump, pump);
#if SINCE(6, 15)
	hrtimer_setup(&side->timer, look_again, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
#else
	hrtimer_init(&side->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	side->timer.function = look_again;
#endif
}

void mock_wire_exit(struct mock_side *side)
{
	mock_wire_clear(side);
	cancel_work_sync(&side->pump);
	hrtimer_cancel(&side->timer);
	cancel_work_sync(&side->pump);
}
