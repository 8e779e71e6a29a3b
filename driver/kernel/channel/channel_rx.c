// SPDX-License-Identifier: GPL-2.0
/* Receive side of a channel: frames in any order, handed to queue pairs once and in sequence. */
#include <linux/ktime.h>

#include "device/trace.h"

#define ACK_DELAY_NS	(200 * NSEC_PER_USEC)

static void give_back(struct fer_frame *frame)
{
	frame->rail->ops->put_rx(frame->rail, frame);
}

static void deliver(struct fer_channel *channel, const struct fer_hdr *hdr, u8 *payload)
{
	struct fer_qp *qp;

	if (hdr->op == FER_OP_SKIP)
		return;
	qp = fer_qp_find(channel->dev, hdr->dqpn);
	if (!qp) {
		fer_count(channel, FER_STAT_NO_QP);
		return;
	}
	mutex_lock(&qp->lock);
	if (hdr->op == FER_OP_DGRAM) {
		fer_dgram_take(qp, hdr, payload);
	} else if (hdr->sqpn != qp->peer_qpn || qp->state < IB_QPS_RTR ||
		   qp->state > IB_QPS_SQD) {
		fer_count(channel, FER_STAT_WRONG_PEER);
	} else {
		switch (hdr->op) {
		case FER_OP_ACK:
			fer_req_ack(qp, hdr->psn);
			break;
		case FER_OP_NAK:
			fer_req_nak(qp, hdr);
			break;
		case FER_OP_READ_RESP:
		case FER_OP_ATOMIC_RESP:
			fer_req_response(qp, hdr, payload);
			break;
		default:
			fer_resp_frame(qp, hdr, payload);
		}
		fer_qp_activate(qp);
	}
	mutex_unlock(&qp->lock);
	fer_qp_put(qp);
}

static void deliver_held(struct fer_channel *channel)
{
	struct fer_frame *frame;
	struct fer_hdr hdr;

	while (channel->held_count) {
		frame = channel->held[FER_SLOT(channel->rx_next)];
		if (!frame)
			return;
		channel->held[FER_SLOT(channel->rx_next)] = NULL;
		channel->held_count--;
		if (fer_hdr_open(frame->data, frame->size, &hdr) != FER_OK) {
			/* it changed while it lay here: as if it had not come */
			fer_count(channel, FER_STAT_RX_BAD_FRAME);
			give_back(frame);
			return;
		}
		channel->rx_next++;
		deliver(channel, &hdr, frame->data + FER_HDR);
		give_back(frame);
	}
}

static bool check(struct fer_channel *channel, struct fer_frame *frame, struct fer_hdr *hdr)
{
	enum fer_bad bad = fer_hdr_open(frame->data, frame->size, hdr);

	if (bad == FER_BAD_CRC)
		fer_count(channel, FER_STAT_RX_BAD_CRC);
	else if (bad != FER_OK)
		fer_count(channel, FER_STAT_RX_BAD_FRAME);
	else if (hdr->epoch != channel->epoch)
		fer_count(channel, FER_STAT_RX_STALE_EPOCH);
	else
		return true;
	return false;
}

void fer_channel_rx(struct fer_channel *channel, struct fer_frame *frame)
{
	u64 now = ktime_get_ns();
	struct fer_hdr hdr;
	s32 ahead;

	lockdep_assert_held(&channel->engine);
	fer_count(channel, FER_STAT_RX_FRAMES);
	fer_count_many(channel, FER_STAT_RX_BYTES, frame->size);
	frame->rail->rx_frames++;
	frame->rail->rx_bytes += frame->size;
	/* who is at the end of a rail is proven only when it comes up */
	if (!channel->up || !frame->rail->up || !check(channel, frame, &hdr))
		goto drop;
	trace_fer_frame_received(frame->rail, &hdr);
	frame->rail->silent = 0;
	fer_channel_acked(channel, hdr.ack, now);
	if (!fer_in_sequence(hdr.op)) {
		fer_channel_missing(channel, hdr.ack, frame->data + FER_HDR, now);
		goto drop;
	}
	ahead = hdr.seq - channel->rx_next;
	if (ahead < 0) {
		fer_count(channel, FER_STAT_RX_DUPLICATE);
		channel->ack_now = true;
		goto drop;
	}
	if (ahead >= FER_WINDOW) {
		fer_count(channel, FER_STAT_RX_BEYOND_WINDOW);
		goto drop;
	}
	if (ahead) {
		channel->ack_now = true;
		if (channel->held[FER_SLOT(hdr.seq)]) {
			fer_count(channel, FER_STAT_RX_DUPLICATE);
			goto drop;
		}
		fer_count(channel, FER_STAT_RX_OUT_OF_ORDER);
		channel->held[FER_SLOT(hdr.seq)] = frame;
		channel->held_count++;
		return;
	}
	channel->rx_next++;
	channel->rx_unacked++;
	if (!channel->ack_due_ns)
		channel->ack_due_ns = now + ACK_DELAY_NS;
	deliver(channel, &hdr, frame->data + FER_HDR);
	give_back(frame);
	deliver_held(channel);
	return;
drop:
	give_back(frame);
}

/* Forget what came early over this rail, as if it had not come. */
void fer_channel_unhold(struct fer_channel *channel, struct fer_rail *rail)
{
	int i;

	lockdep_assert_held(&channel->engine);
	for (i = 0; i < FER_WINDOW; i++) {
		struct fer_frame *frame = channel->held[i];

		if (!frame || frame->rail != rail)
			continue;
		channel->held[i] = NULL;
		channel->held_count--;
		give_back(frame);
	}
}
