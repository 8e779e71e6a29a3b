// SPDX-License-Identifier: GPL-2.0
/* The rings of the host controller that a rail has, with their frames, and its path each way. */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "usb4/tb.h"

static bool e2e;
module_param(e2e, bool, 0444);
MODULE_PARM_DESC(e2e, "flow control by the controllers, if both ends ask for it; it stops some of them for good");

static unsigned int leave_rings;
module_param(leave_rings, uint, 0644);
MODULE_PARM_DESC(leave_rings, "rings of a controller that stay free for others, such as thunderbolt_net");

#ifdef FER_TB_THROTTLING
static unsigned int throttle_ns = 8000;
module_param(throttle_ns, uint, 0644);
MODULE_PARM_DESC(throttle_ns, "nanoseconds between two interrupts of a ring");
#endif

static bool ring_is_free(struct tb_nhi *nhi, unsigned int hop)
{
	return !nhi->tx_rings[hop] && !nhi->rx_rings[hop];
}

/* As many rings as others are to have stay free. */
static bool may_take_ring(struct fer_tb *tb)
{
	struct tb_nhi *nhi = tb->xd->tb->nhi;
	unsigned int hop, count = 0;

	if (!nhi->tx_rings || !nhi->rx_rings)
		return true;
	for (hop = 1; hop < nhi->hop_count; hop++)
		count += ring_is_free(nhi, hop);
	if (count > leave_rings)
		return true;
	if (!tb->told)
		dev_warn(&tb->service->dev,
			 "no ring for RDMA: the controller has %u, of which %u are free and leave_rings=%u stay so; `ip link set thunderboltN down` frees that of the network\n",
			 nhi->hop_count - 1, count, leave_rings);
	tb->told = true;
	return false;
}

static int fill(struct fer_tb *tb)
{
	struct device *dev = tb_ring_dma_device(tb->rx);
	int i;

	for (i = 0; i < FER_TB_RING - 1; i++) {
		struct fer_tb_frame *to = &tb->rx_frames[i];

		to->frame.rail = &tb->rail;
		to->frame.data = (u8 *)__get_free_page(GFP_KERNEL);
		if (!to->frame.data)
			return -ENOMEM;
		to->ring.buffer_phy = dma_map_single(dev, to->frame.data, FER_FRAME,
						     DMA_FROM_DEVICE);
		if (dma_mapping_error(dev, to->ring.buffer_phy)) {
			free_page((unsigned long)to->frame.data);
			to->frame.data = NULL;
			return -ENOMEM;
		}
	}
	return 0;
}

static int map_frames(struct fer_tb *tb, struct fer_channel *channel)
{
	struct device *dev = tb_ring_dma_device(tb->tx);
	int i;

	for (i = 0; i < FER_FRAMES; i++) {
		struct fer_tb_frame *to = &tb->tx_frames[i];

		to->queued = false;
		to->ring.buffer_phy = dma_map_single(dev, channel->frames[i].data, FER_FRAME,
						     DMA_TO_DEVICE);
		if (dma_mapping_error(dev, to->ring.buffer_phy))
			return -ENOMEM;
		to->frame.data = channel->frames[i].data; /* it is mapped */
	}
	return 0;
}

static void unmap_frames(struct fer_tb *tb)
{
	int i;

	for (i = 0; i < FER_FRAMES; i++) {
		struct fer_tb_frame *from = &tb->tx_frames[i];

		if (from->frame.data)
			dma_unmap_single(tb_ring_dma_device(tb->tx), from->ring.buffer_phy,
					 FER_FRAME, DMA_TO_DEVICE);
		from->frame.data = NULL;
	}
}

static void free_rings(struct fer_tb *tb)
{
	int i;

	for (i = 0; tb->rx_frames && i < FER_TB_RING; i++) {
		struct fer_tb_frame *frame = &tb->rx_frames[i];

		if (!frame->frame.data)
			continue;
		dma_unmap_single(tb_ring_dma_device(tb->rx), frame->ring.buffer_phy, FER_FRAME,
				 DMA_FROM_DEVICE);
		free_page((unsigned long)frame->frame.data);
	}
	if (tb->tx_frames)
		unmap_frames(tb);
	kvfree(tb->rx_frames);
	kvfree(tb->tx_frames);
	tb->rx_frames = NULL;
	tb->tx_frames = NULL;
	if (tb->rx)
		tb_ring_free(tb->rx);
	if (tb->tx)
		tb_ring_free(tb->tx);
	tb->rx = NULL;
	tb->tx = NULL;
}

/* The rail is joined to its channel, and fer_topology is held. */
int fer_tb_rings(struct fer_tb *tb)
{
	struct tb_nhi *nhi = tb->xd->tb->nhi;
	unsigned int flags = RING_FLAG_FRAME;
	int err = -ENOSPC, i;
	bool flow;

	lockdep_assert_held(&fer_topology);
	if (!may_take_ring(tb))
		return err;
	tb->tx = tb_ring_alloc_tx(nhi, -1, FER_TB_RING, flags);
	if (!tb->tx)
		return err;
	/* It makes the core mask the ring's interrupt; completions are polled. */
	tb->tx_masked = false;
	tb->tx->poll_data = tb;
	tb->tx->start_poll = fer_tb_frames_left;
	mutex_lock(&tb->lock);
	flow = tb->ours.caps & tb->theirs.caps & FER_TB_CAP_E2E;
	mutex_unlock(&tb->lock);
	if (flow)
		flags |= RING_FLAG_E2E;
	tb->rx = tb_ring_alloc_rx(nhi, -1, FER_TB_RING, flags, tb->tx->hop, BIT(FER_TB_PDF_START),
				  BIT(FER_TB_PDF_END), fer_tb_frames_came, tb);
	if (!tb->rx)
		goto free;
	err = -ENOMEM;
	tb->rx_frames = kvcalloc(FER_TB_RING, sizeof(*tb->rx_frames), GFP_KERNEL);
	tb->tx_frames = kvcalloc(FER_FRAMES, sizeof(*tb->tx_frames), GFP_KERNEL);
	if (!tb->rx_frames || !tb->tx_frames)
		goto free;
	err = fill(tb);
	if (!err)
		err = map_frames(tb, tb->rail.channel);
	if (err)
		goto free;
#ifdef FER_TB_THROTTLING
	tb_ring_throttling(tb->rx, throttle_ns);
#endif
	WRITE_ONCE(tb->wakes, true);
	tb_ring_start(tb->tx);
	tb_ring_start(tb->rx);
	for (i = 0; i < FER_TB_RING - 1; i++)
		fer_tb_give(tb, &tb->rx_frames[i]);
	mutex_lock(&tb->rail.channel->engine);
	tb->running = true;
	mutex_unlock(&tb->rail.channel->engine);
	return 0;
free:
	free_rings(tb);
	return err;
}

int fer_tb_paths(struct fer_tb *tb)
{
	u32 theirs;
	int hop, err;

	mutex_lock(&tb->lock);
	theirs = tb->theirs.hop;
	mutex_unlock(&tb->lock);
	hop = theirs > INT_MAX ? -EINVAL : tb_xdomain_alloc_in_hopid(tb->xd, theirs);
	if (hop < 0)
		return -EBUSY;
	if (hop != theirs) {
		tb_xdomain_release_in_hopid(tb->xd, hop);
		return -EBUSY;
	}
	err = tb_xdomain_enable_paths(tb->xd, tb->out_hop, tb->tx->hop, hop, tb->rx->hop);
	if (err) {
		tb_xdomain_release_in_hopid(tb->xd, hop);
		return err;
	}
	tb->in_hop = hop;
	tb->paths = true;
	return 0;
}

/*
 * The core warns when a ring is stopped whose interrupt is masked. So it is allowed again, and
 * what it would mask by is taken away. Interrupts from now on only run the ring's work, which
 * finds no callbacks.
 */
static void unmask(struct tb_ring *ring, bool *flag, bool masked)
{
	unsigned long irq;
	bool done;

	do {
		WRITE_ONCE(*flag, !masked);
		tb_ring_poll_complete(ring);
		spin_lock_irqsave(&ring->lock, irq);
		done = READ_ONCE(*flag) != masked;
		if (done)
			ring->start_poll = NULL;
		spin_unlock_irqrestore(&ring->lock, irq);
	} while (!done);
}

/*
 * The rail leaves its channel, which may have frames in the rings: stopped rings give all of them
 * back. Under fer_topology.
 */
void fer_tb_stop(struct fer_rail *rail)
{
	struct fer_tb *tb = to_fer_tb(rail);
	struct fer_channel *channel = rail->channel;
	int i;

	lockdep_assert_held(&fer_topology);
	mutex_lock(&channel->engine);
	fer_rail_down(rail, "it leaves");
	if (tb->running) {
		tb->running = false;
		unmask(tb->rx, &tb->wakes, false);
		unmask(tb->tx, &tb->tx_masked, true);
		tb_ring_stop(tb->rx);
		tb_ring_stop(tb->tx);
		for (i = 0; i < FER_FRAMES; i++) {
			channel->frames[i].busy -= tb->tx_frames[i].queued;
			tb->tx_frames[i].queued = false;
		}
		rail->reading = 0;
	}
	mutex_unlock(&channel->engine);
	if (tb->tx_frames)
		unmap_frames(tb);
}

/* The rail has left its channel. */
void fer_tb_take_down(struct fer_tb *tb)
{
	if (tb->paths) {
		tb_xdomain_disable_paths(tb->xd, tb->out_hop, tb->tx->hop, tb->in_hop,
					 tb->rx->hop);
		tb_xdomain_release_in_hopid(tb->xd, tb->in_hop);
	}
	tb->paths = false;
	free_rings(tb);
}

u32 fer_tb_caps(void)
{
	return (e2e ? FER_TB_CAP_E2E : 0) | (fer_have_key() ? FER_TB_CAP_KEY : 0);
}
