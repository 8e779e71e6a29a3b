// SPDX-License-Identifier: GPL-2.0
/*
 * The wire over a USB4 cable: frames are sent out of the channel's own buffers and received into
 * pages of the rail; nothing is copied. All but the interrupts is under channel->engine.
 */
#include <linux/dma-mapping.h>

#include "usb4/tb.h"

static void tb_tx(struct fer_rail *rail, struct fer_frame *frame)
{
	struct fer_tb *tb = to_fer_tb(rail);
	struct fer_tb_frame *to = &tb->tx_frames[frame->index];

	if (to->queued)
		return; /* it has not even left yet */
	to->ring.size = frame->size == FER_FRAME ? 0 : frame->size;
	to->ring.sof = FER_TB_PDF_START;
	to->ring.eof = FER_TB_PDF_END;
	dma_sync_single_for_device(tb_ring_dma_device(tb->tx), to->ring.buffer_phy, frame->size,
				   DMA_TO_DEVICE);
	if (tb_ring_tx(tb->tx, &to->ring))
		return; /* stopped: as if it were lost */
	to->queued = true;
	frame->busy++;
	rail->reading++;
}

static void reap(struct fer_tb *tb)
{
	struct ring_frame *ring;

	while ((ring = tb_ring_poll(tb->tx))) {
		struct fer_tb_frame *done = container_of(ring, struct fer_tb_frame, ring);

		done->queued = false;
		tb->rail.reading--;
		tb->rail.channel->frames[done - tb->tx_frames].busy--;
	}
}

void fer_tb_give(struct fer_tb *tb, struct fer_tb_frame *to)
{
	dma_sync_single_for_device(tb_ring_dma_device(tb->rx), to->ring.buffer_phy, FER_FRAME,
				   DMA_FROM_DEVICE);
	tb_ring_rx(tb->rx, &to->ring); /* of a ring that stops it is ours again anyway */
}

static void tb_put_rx(struct fer_rail *rail, struct fer_frame *frame)
{
	fer_tb_give(to_fer_tb(rail), container_of(frame, struct fer_tb_frame, frame));
}

static int tb_poll(struct fer_rail *rail, int budget)
{
	struct fer_tb *tb = to_fer_tb(rail);
	struct ring_frame *ring;
	int got = 0;

	if (!tb->running)
		return 0;
	reap(tb);
	while (got < budget && (ring = tb_ring_poll(tb->rx))) {
		struct fer_tb_frame *came = container_of(ring, struct fer_tb_frame, ring);

		got++;
		if (ring->flags & (RING_DESC_CRC_ERROR | RING_DESC_BUFFER_OVERRUN)) {
			if (ring->flags & RING_DESC_CRC_ERROR)
				tb->crc_errors++;
			else
				tb->overruns++;
			fer_tb_give(tb, came);
			continue;
		}
		came->frame.size = ring->size ?: FER_FRAME;
		dma_sync_single_for_cpu(tb_ring_dma_device(tb->rx), ring->buffer_phy,
					came->frame.size, DMA_FROM_DEVICE);
		fer_channel_rx(rail->channel, &came->frame);
	}
	return got;
}

/* In an interrupt: the controller has masked it. */
void fer_tb_frames_came(void *data)
{
	struct fer_tb *tb = data;
	struct fer_channel *channel;

	WRITE_ONCE(tb->wakes, false);
	channel = READ_ONCE(tb->rail.channel);
	if (channel)
		fer_channel_kick(channel);
}

/* What came before the interrupt was allowed again may raise none. */
static bool tb_arm(struct fer_rail *rail)
{
	struct fer_tb *tb = to_fer_tb(rail);

	if (!tb->running || READ_ONCE(tb->wakes))
		return false;
	WRITE_ONCE(tb->wakes, true);
	tb_ring_poll_complete(tb->rx);
	return tb_poll(rail, 64) > 0;
}

/* Completions are looked at when something is to be done anyway: it stays masked. */
void fer_tb_frames_left(void *data)
{
	struct fer_tb *tb = data;

	WRITE_ONCE(tb->tx_masked, true);
}

static void tb_lost(struct fer_rail *rail)
{
	struct fer_tb *tb = to_fer_tb(rail);

	xchg(&tb->is_lost, 1);
	fer_tb_kick(tb, 0);
}

const struct fer_wire_ops fer_tb_ops = {
	.name = "usb4",
	.tx = tb_tx,
	.poll = tb_poll,
	.put_rx = tb_put_rx,
	.arm = tb_arm,
	.lost = tb_lost,
	.leave = fer_tb_stop,
};
