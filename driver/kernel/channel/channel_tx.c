// SPDX-License-Identifier: GPL-2.0
/* Send side of a channel: each frame stays in its buffer until it is acknowledged. */
#include <linux/ktime.h>
#include <linux/module.h>

#include "device/trace.h"

#define RESEND_GAP_NS	(500 * NSEC_PER_USEC)
#define RTO_MAX_NS		(200 * NSEC_PER_MSEC)
#define DOUBT_NS		((u64)NSEC_PER_SEC)

static unsigned int rto_us = 5000;
module_param(rto_us, uint, 0644);
MODULE_PARM_DESC(rto_us, "microseconds until an unacknowledged frame is sent again, at least");

/* One that no wire reads any more. */
static struct fer_frame *take_free(struct fer_channel *channel)
{
	struct fer_frame *frame;

	list_for_each_entry(frame, &channel->free, node) {
		if (frame->busy)
			continue;
		list_del(&frame->node);
		return frame;
	}
	return NULL;
}

struct fer_frame *fer_channel_get(struct fer_channel *channel)
{
	lockdep_assert_held(&channel->engine);
	if (!channel->up || channel->tx_next - channel->tx_una >= channel->window)
		return NULL;
	return take_free(channel);
}

void fer_channel_put(struct fer_channel *channel, struct fer_frame *frame)
{
	lockdep_assert_held(&channel->engine);
	if (frame->busy)
		list_add_tail(&frame->node, &channel->free);
	else
		list_add(&frame->node, &channel->free);
}

/* The open way with the fewest frames on it, if there is one other than but. */
static struct fer_rail *pick(struct fer_channel *channel, const struct fer_rail *but, u64 now)
{
	struct fer_rail *rail, *best = NULL, *last = NULL;
	int i;

	fer_each_rail(channel, rail, i) {
		if (!rail->up)
			continue;
		if (rail == but || rail->doubted_until_ns > now) {
			if (!last || rail != but)
				last = rail;
		} else if (!best || rail->unacked < best->unacked) {
			best = rail;
		}
	}
	return best ?: last;
}

static void push(struct fer_channel *channel, struct fer_rail *rail, struct fer_frame *frame,
		 const struct fer_hdr *hdr, u64 now)
{
	trace_fer_frame_sent(rail, hdr);
	rail->last_tx_ns = now;
	rail->tx_frames++;
	rail->tx_bytes += frame->size;
	fer_count(channel, FER_STAT_TX_FRAMES);
	fer_count_many(channel, FER_STAT_TX_BYTES, frame->size);
	rail->ops->tx(rail, frame);
}

/* why: NULL for the first time */
static void transmit(struct fer_channel *channel, struct fer_txslot *slot, const char *why,
		     u64 now)
{
	struct fer_rail *rail = pick(channel, slot->rail, now);

	slot->sent_ns = now;
	slot->tries++;
	if (!rail)
		return; /* it is sent when there is a way again */
	if (!slot->frame->busy) { /* else it goes as it is: a wire reads it */
		slot->hdr.ack = channel->rx_next;
		slot->hdr.window = channel->window;
		slot->frame->size = FER_HDR + slot->hdr.len;
		fer_hdr_seal(slot->frame->data, &slot->hdr);
		channel->rx_unacked = 0;
		channel->ack_due_ns = 0;
	}
	if (slot->rail)
		slot->rail->unacked--;
	rail->unacked++;
	slot->rail = rail;
	slot->order = ++rail->sent_order;
	if (why)
		trace_fer_frame_again(rail, &slot->hdr, why);
	push(channel, rail, slot->frame, &slot->hdr, now);
}

/* Round-trip time of acknowledgements: as TCP does it (RFC 6298). */
static void took(struct fer_channel *channel, u64 ns)
{
	u64 off = ns > channel->rtt_ns ? ns - channel->rtt_ns : channel->rtt_ns - ns;

	if (!channel->rtt_ns) {
		channel->rtt_ns = ns;
		channel->rtt_var_ns = ns / 2;
		return;
	}
	channel->rtt_var_ns += div_s64((s64)(off - channel->rtt_var_ns), 4);
	channel->rtt_ns += div_s64((s64)(ns - channel->rtt_ns), 8);
}

static u64 first_rto_ns(struct fer_channel *channel)
{
	u64 least = READ_ONCE(rto_us) * (u64)NSEC_PER_USEC;

	return clamp_t(u64, channel->rtt_ns + 4 * channel->rtt_var_ns, least, RTO_MAX_NS);
}

void fer_channel_send(struct fer_channel *channel, struct fer_frame *frame, struct fer_hdr *hdr)
{
	struct fer_txslot *slot = &channel->tx[FER_SLOT(channel->tx_next)];
	u64 now = ktime_get_ns();

	lockdep_assert_held(&channel->engine);
	if (channel->tx_next == channel->tx_una) {
		channel->progress_ns = now;
		channel->rto_ns = first_rto_ns(channel);
	}
	hdr->epoch = channel->epoch;
	hdr->seq = channel->tx_next++;
	slot->frame = frame;
	slot->hdr = *hdr;
	slot->rail = NULL;
	slot->tries = 0;
	transmit(channel, slot, NULL, now);
}

static void resend(struct fer_channel *channel, u32 seq, enum fer_again why, u64 now)
{
	static const char *const text[] = {
		[FER_AGAIN_LATE] = "late", [FER_AGAIN_MISSING] = "missing",
		[FER_AGAIN_REROUTED] = "rerouted",
	};
	static const enum fer_stat stats[] = {
		[FER_AGAIN_LATE] = FER_STAT_RESENT_LATE,
		[FER_AGAIN_MISSING] = FER_STAT_RESENT_MISSING,
		[FER_AGAIN_REROUTED] = FER_STAT_RESENT_REROUTED,
	};
	struct fer_txslot *slot = &channel->tx[FER_SLOT(seq)];

	if (slot->hdr.flags & FER_UNRELIABLE && slot->hdr.op != FER_OP_SKIP &&
	    !slot->frame->busy) {
		/* late it is of no use: only its place in the sequence is filled */
		slot->hdr = (struct fer_hdr){
			.op = FER_OP_SKIP, .epoch = channel->epoch, .seq = seq,
		};
		fer_count(channel, FER_STAT_SKIPPED);
	} else {
		fer_count(channel, FER_STAT_RESENT);
	}
	fer_count(channel, stats[why]);
	if (slot->rail)
		slot->rail->resent++;
	transmit(channel, slot, text[why], now);
}

/*
 * It has arrived. If it was sent once that says how far its way has come; if more than once, it
 * may be the first copy, of another way, that is there (Karn's rule).
 */
static void there(struct fer_txslot *slot, u64 now)
{
	struct fer_rail *rail = slot->rail;

	if (rail && slot->tries == 1 && (s32)(slot->order - rail->acked_order) > 0) {
		rail->acked_order = slot->order;
		rail->moved_ns = now;
		rail->doubted_until_ns = 0;
	}
}

/* All before ack have arrived. */
void fer_channel_acked(struct fer_channel *channel, u32 ack, u64 now)
{
	lockdep_assert_held(&channel->engine);
	if ((s32)(ack - channel->tx_una) <= 0 || (s32)(channel->tx_next - ack) < 0)
		return;
	while (channel->tx_una != ack) {
		struct fer_txslot *slot = &channel->tx[FER_SLOT(channel->tx_una++)];

		there(slot, now);
		if (slot->rail)
			slot->rail->unacked--;
		if (channel->tx_una == ack && slot->tries == 1 && now > slot->sent_ns)
			took(channel, now - slot->sent_ns);
		fer_channel_put(channel, slot->frame);
		slot->frame = NULL;
	}
	channel->progress_ns = now;
	channel->rto_ns = first_rto_ns(channel);
}

/*
 * The peer has some frames behind the first missing one. A missing one is lost if one that
 * went the same way after it is there, and is sent again.
 */
void fer_channel_missing(struct fer_channel *channel, u32 ack, const u8 *bits, u64 now)
{
	int last = -1, i;

	lockdep_assert_held(&channel->engine);
	if (ack != channel->tx_una)
		return; /* about what is acknowledged meanwhile */
	for (i = 0; i < FER_WINDOW - 1; i++) {
		if (!(bits[i / 8] & (1 << (i % 8))))
			continue;
		if ((s32)(channel->tx_next - (ack + 1 + i)) <= 0)
			return; /* nonsense */
		there(&channel->tx[FER_SLOT(ack + 1 + i)], now);
		last = i;
	}
	for (i = -1; i < last; i++) {
		u32 seq = ack + 1 + i;
		struct fer_txslot *slot = &channel->tx[FER_SLOT(seq)];

		if (i >= 0 && bits[i / 8] & (1 << (i % 8)))
			continue;
		if (slot->rail && (s32)(slot->order - slot->rail->acked_order) > 0)
			continue;
		if (now - slot->sent_ns > RESEND_GAP_NS)
			resend(channel, seq, FER_AGAIN_MISSING, now);
	}
}

/* Send again, on other ways, what went over this one. */
void fer_channel_reroute(struct fer_channel *channel, struct fer_rail *rail, u64 now)
{
	u32 seq;

	lockdep_assert_held(&channel->engine);
	for (seq = channel->tx_una; seq != channel->tx_next; seq++)
		if (channel->tx[FER_SLOT(seq)].rail == rail)
			resend(channel, seq, FER_AGAIN_REROUTED, now);
}

/*
 * When the oldest frame is late: counted from when it was sent, or from the last one that was
 * acknowledged, as TCP does (RFC 6298, 5.3). What lies behind others on a slow wire is not lost.
 */
u64 fer_channel_late_at(const struct fer_channel *channel)
{
	const struct fer_txslot *oldest = &channel->tx[FER_SLOT(channel->tx_una)];

	return max(oldest->sent_ns, channel->progress_ns) + channel->rto_ns;
}

/* Nothing came through there since then, while something did elsewhere: it is not the peer. */
static bool stands_still(struct fer_channel *channel, const struct fer_rail *rail, u64 since)
{
	struct fer_rail *other;
	int i;

	if (rail->moved_ns > since)
		return false;
	fer_each_rail(channel, other, i)
		if (other != rail && other->up && other->moved_ns > since)
			return true;
	return false;
}

/* The oldest frame is not acknowledged: send it again after some time. */
void fer_channel_late(struct fer_channel *channel, u64 now)
{
	struct fer_txslot *oldest = &channel->tx[FER_SLOT(channel->tx_una)];
	struct fer_rail *rail = oldest->rail;

	lockdep_assert_held(&channel->engine);
	if (now <= fer_channel_late_at(channel))
		return;
	channel->rto_ns = min_t(u64, channel->rto_ns * 2, RTO_MAX_NS);
	if (rail && stands_still(channel, rail, oldest->sent_ns)) {
		rail->doubted_until_ns = now + DOUBT_NS;
		fer_channel_reroute(channel, rail, now);
	} else {
		resend(channel, channel->tx_una, FER_AGAIN_LATE, now);
	}
}

/* Its wire stands still, or is far behind. */
static bool clogged(const struct fer_rail *rail)
{
	return rail->reading > FER_FRAMES / 4;
}

/* Tell what is here, on this rail or on each in its turn. */
void fer_channel_ack(struct fer_channel *channel, struct fer_rail *rail)
{
	struct fer_hdr hdr = {
		.op = FER_OP_CHANNEL_ACK, .len = FER_ACK_MAP, .epoch = channel->epoch,
		.ack = channel->rx_next, .window = channel->window,
	};
	u64 now = ktime_get_ns();
	struct fer_frame *frame;
	u8 *bits;
	int i;

	lockdep_assert_held(&channel->engine);
	for (i = 0; i < FER_MAX_RAILS && !rail; i++) {
		rail = channel->rails[channel->ack_turn++ % FER_MAX_RAILS];
		if (rail && (!rail->up || rail->doubted_until_ns > now || clogged(rail)))
			rail = NULL;
	}
	if (!rail)
		rail = pick(channel, NULL, now);
	frame = rail ? take_free(channel) : NULL;
	if (!frame)
		return; /* a bit later */
	bits = frame->data + FER_HDR;
	memset(bits, 0, FER_ACK_MAP);
	if (channel->held_count)
		for (i = 0; i < FER_WINDOW - 1; i++)
			if (channel->held[FER_SLOT(channel->rx_next + 1 + i)])
				bits[i / 8] |= 1 << (i % 8);
	fer_hdr_seal(frame->data, &hdr);
	frame->size = FER_HDR + hdr.len;
	push(channel, rail, frame, &hdr, now);
	fer_channel_put(channel, frame);
	channel->rx_unacked = 0;
	channel->ack_due_ns = 0;
	channel->ack_now = false;
}
