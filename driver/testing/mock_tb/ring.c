// SPDX-License-Identifier: GPL-2.0
/* Rings, as drivers see them; wire.c moves their frames. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "mock.h"

static struct mock_ring *to_mock(struct tb_ring *ring)
{
	return container_of(ring, struct mock_ring, ring);
}

/* Give filled frames to a driver that does not poll. */
static void rx_work(struct work_struct *work)
{
	struct mock_ring *mock = container_of(work, struct mock_ring, rx_work);
	struct ring_frame *frame;

	if (mock->ring.start_poll) {
		mock_ring_notify(mock);
		return;
	}
	while ((frame = tb_ring_poll(&mock->ring)))
		if (frame->callback)
			frame->callback(&mock->ring, frame, false);
}

/* Frames have arrived: the driver polls from a softirq, as after an interrupt. */
void mock_ring_notify(struct mock_ring *mock)
{
	struct tb_ring *ring = &mock->ring;
	unsigned long flags;

	local_bh_disable();
	spin_lock_irqsave(&ring->lock, flags);
	if (!ring->start_poll) {
		queue_work(mock_wq, &mock->rx_work);
	} else if (ring->running && !list_empty(&mock->filled) && !mock->polling) {
		mock->polling = true;
		/* under the ring's lock, as in the core: a driver may take it away under that */
		ring->start_poll(ring->poll_data);
	}
	spin_unlock_irqrestore(&ring->lock, flags);
	local_bh_enable();
}

/* A frame has left: tb_ring_poll() gives it back. */
void mock_ring_done(struct mock_ring *mock, struct ring_frame *frame)
{
	unsigned long flags;

	spin_lock_irqsave(&mock->ring.lock, flags);
	list_add_tail(&frame->list, &mock->filled);
	spin_unlock_irqrestore(&mock->ring.lock, flags);
}

static struct mock_ring *ring_new(struct tb_nhi *nhi, int hop, int size, unsigned int flags,
				  bool tx)
{
	struct mock_side *side = container_of(nhi, struct mock_side, nhi);
	struct ida *hops = tx ? &side->tx_hops : &side->rx_hops;
	struct mock_ring *mock = kzalloc(sizeof(*mock), GFP_KERNEL);

	if (!mock)
		return NULL;
	hop = ida_alloc_range(hops, hop < 0 ? 1 : hop, hop < 0 ? MOCK_HOPS - 1 : hop, GFP_KERNEL);
	if (hop < 0) {
		kfree(mock);
		return NULL;
	}
	spin_lock_init(&mock->ring.lock);
	INIT_LIST_HEAD(&mock->ring.queue);
	INIT_LIST_HEAD(&mock->ring.in_flight);
	INIT_LIST_HEAD(&mock->filled);
	INIT_WORK(&mock->rx_work, rx_work);
#if SINCE(7, 2)
	init_waitqueue_head(&mock->ring.wait);
#endif
	mock->ring.nhi = nhi;
	mock->ring.hop = hop;
	mock->ring.size = size;
	mock->ring.is_tx = tx;
	mock->ring.flags = flags;
	mock->side = side;
	mutex_lock(&mock_wire_lock);
	list_add_tail(&mock->node, &side->rings);
	mutex_unlock(&mock_wire_lock);
	return mock;
}

struct tb_ring *tb_ring_alloc_tx(struct tb_nhi *nhi, int hop, int size, unsigned int flags)
{
	struct mock_ring *mock = ring_new(nhi, hop, size, flags, true);

	return mock ? &mock->ring : NULL;
}
EXPORT_SYMBOL_GPL(tb_ring_alloc_tx);

struct tb_ring *tb_ring_alloc_rx(struct tb_nhi *nhi, int hop, int size, unsigned int flags,
				 int e2e_tx_hop, u16 sof_mask, u16 eof_mask,
				 void (*start_poll)(void *), void *poll_data)
{
	struct mock_ring *mock = ring_new(nhi, hop, size, flags, false);

	if (!mock)
		return NULL;
	mock->ring.e2e_tx_hop = e2e_tx_hop;
	mock->ring.sof_mask = sof_mask;
	mock->ring.eof_mask = eof_mask;
	mock->ring.start_poll = start_poll;
	mock->ring.poll_data = poll_data;
	return &mock->ring;
}
EXPORT_SYMBOL_GPL(tb_ring_alloc_rx);

void tb_ring_start(struct tb_ring *ring)
{
	unsigned long flags;

	spin_lock_irqsave(&ring->lock, flags);
	ring->running = true;
	spin_unlock_irqrestore(&ring->lock, flags);
}
EXPORT_SYMBOL_GPL(tb_ring_start);

/* All frames that the ring has come back as cancelled before this returns, and none later. */
void tb_ring_stop(struct tb_ring *ring)
{
	struct mock_ring *mock = to_mock(ring);
	struct ring_frame *frame, *next;
	unsigned long flags;
	LIST_HEAD(frames);

	mutex_lock(&mock_wire_lock);
	spin_lock_irqsave(&ring->lock, flags);
	ring->running = false;
	mock->polling = false;
	list_splice_tail_init(&mock->filled, &frames);
	list_splice_tail_init(&ring->queue, &frames);
	spin_unlock_irqrestore(&ring->lock, flags);
	mutex_unlock(&mock_wire_lock);
	cancel_work_sync(&mock->rx_work);
	list_for_each_entry_safe(frame, next, &frames, list) {
		list_del_init(&frame->list);
		if (frame->callback)
			frame->callback(ring, frame, true);
	}
}
EXPORT_SYMBOL_GPL(tb_ring_stop);

void tb_ring_free(struct tb_ring *ring)
{
	struct mock_ring *mock = to_mock(ring);

	mutex_lock(&mock_wire_lock);
	WARN_ON(ring->running);
	list_del(&mock->node);
	mutex_unlock(&mock_wire_lock);
	cancel_work_sync(&mock->rx_work);
	ida_free(ring->is_tx ? &mock->side->tx_hops : &mock->side->rx_hops, ring->hop);
	kfree(mock);
}
EXPORT_SYMBOL_GPL(tb_ring_free);

int __tb_ring_enqueue(struct tb_ring *ring, struct ring_frame *frame)
{
	struct mock_ring *mock = to_mock(ring);
	unsigned long flags;
	int ret = -ESHUTDOWN;

	spin_lock_irqsave(&ring->lock, flags);
	if (ring->running) {
		list_add_tail(&frame->list, &ring->queue);
		ret = 0;
	}
	spin_unlock_irqrestore(&ring->lock, flags);
	if (!ret)	/* a buffer of a receiver lets its sender go on */
		mock_kick(ring->is_tx ? mock->side : mock->side->peer);
	return ret;
}
EXPORT_SYMBOL_GPL(__tb_ring_enqueue);

struct ring_frame *tb_ring_poll(struct tb_ring *ring)
{
	struct mock_ring *mock = to_mock(ring);
	struct ring_frame *frame = NULL;
	unsigned long flags;

	spin_lock_irqsave(&ring->lock, flags);
	if (ring->running)
		frame = list_first_entry_or_null(&mock->filled, struct ring_frame, list);
	if (frame)
		list_del_init(&frame->list);
	spin_unlock_irqrestore(&ring->lock, flags);
	return frame;
}
EXPORT_SYMBOL_GPL(tb_ring_poll);

void tb_ring_poll_complete(struct tb_ring *ring)
{
	struct mock_ring *mock = to_mock(ring);
	unsigned long flags;
	bool more;

	spin_lock_irqsave(&ring->lock, flags);
	mock->polling = false;
	more = ring->running && !list_empty(&mock->filled);
	spin_unlock_irqrestore(&ring->lock, flags);
	if (more)	/* not at once: the driver is in its own poll function */
		queue_work(mock_wq, &mock->rx_work);
}
EXPORT_SYMBOL_GPL(tb_ring_poll_complete);

#if SINCE(7, 2)
int tb_ring_throttling(struct tb_ring *ring, unsigned int interval_nsec)
{
	ring->interval_nsec = interval_nsec;
	return 0;
}
EXPORT_SYMBOL_GPL(tb_ring_throttling);

bool tb_ring_flush(struct tb_ring *ring, unsigned int timeout_msec)
{
	unsigned long end = jiffies + msecs_to_jiffies(timeout_msec);

	while (!list_empty_careful(&ring->queue)) {
		if (time_after(jiffies, end))
			return false;
		usleep_range(500, 1000);
	}
	return true;
}
EXPORT_SYMBOL_GPL(tb_ring_flush);
#endif
