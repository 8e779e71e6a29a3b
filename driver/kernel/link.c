// SPDX-License-Identifier: GPL-2.0
/*
 * The link: frames in sequence, each until it is acknowledged, over a wire that
 * may lose, damage, repeat and reorder them. All of a device's work is done by whoever
 * holds link->engine: the link's thread, or a process that rang a doorbell and so saves
 * the way to the thread and back.
 */
#include <linux/crc32c.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "qp.h"

#define FRAMES		(FER_WINDOW + 8)
#define ACK_EVERY	32
#define ACK_DELAY	(200 * NSEC_PER_USEC)
#define RESEND_GAP	(500 * NSEC_PER_USEC)
#define RTO_MAX		(200 * NSEC_PER_MSEC)
#define DEAD_AFTER	(3 * (u64)NSEC_PER_SEC)
#define DEAD_TRIES	8	/* so that a machine that stood still itself asks again first */
#define MASK		(FER_WINDOW - 1)

static unsigned int rto_us = 5000;
module_param(rto_us, uint, 0644);
MODULE_PARM_DESC(rto_us, "microseconds until an unacknowledged frame is sent again");

static unsigned int spin_us = 50;
module_param(spin_us, uint, 0644);
MODULE_PARM_DESC(spin_us, "microseconds of polling before the link's thread sleeps");

u32 fer_crc32c(const u8 *head, size_t head_len, const u8 *tail, size_t tail_len)
{
	return ~crc32c(crc32c(~0u, head, head_len), tail, tail_len);
}

void fer_link_kick(struct fer_link *link)
{
	atomic_set(&link->kicked, 1);
	/* pairs with the barrier in set_current_state() of the sleeping thread */
	smp_mb__after_atomic();
	if (waitqueue_active(&link->wait))
		wake_up(&link->wait);
}

/* ---- sending ---- */

struct fer_frame *fer_link_get(struct fer_link *link)
{
	struct fer_frame *frame;

	if (!link->up || link->tx_next - link->tx_una >= FER_WINDOW)
		return NULL;
	frame = list_first_entry_or_null(&link->free, struct fer_frame, node);
	if (frame)
		list_del(&frame->node);
	return frame;
}

void fer_link_put(struct fer_link *link, struct fer_frame *frame)
{
	list_add(&frame->node, &link->free);
}

static void transmit(struct fer_link *link, struct fer_txslot *slot, u64 now)
{
	slot->hdr.ack = link->rx_next;
	slot->hdr.window = FER_WINDOW;
	fer_hdr_seal(slot->frame->data, &slot->hdr);
	slot->sent = now;
	slot->tries++;
	fer_count(link, FER_STAT_TX_FRAMES);
	link->stats[FER_STAT_TX_BYTES] += FER_HDR + slot->hdr.len;
	link->wire->tx(link, slot->frame->data, FER_HDR + slot->hdr.len);
	link->rx_unacked = 0;
	link->ack_due = 0;
}

void fer_link_send(struct fer_link *link, struct fer_frame *frame, struct fer_hdr *hdr)
{
	struct fer_txslot *slot = &link->tx[link->tx_next & MASK];
	u64 now = ktime_get_ns();

	if (link->tx_next == link->tx_una) {
		link->progress = now;
		link->rto = rto_us * (u64)NSEC_PER_USEC;
	}
	hdr->epoch = link->epoch;
	hdr->seq = link->tx_next++;
	slot->frame = frame;
	slot->hdr = *hdr;
	slot->tries = 0;
	transmit(link, slot, now);
}

static void resend(struct fer_link *link, u32 seq, u64 now)
{
	struct fer_txslot *slot = &link->tx[seq & MASK];

	if (slot->hdr.flags & FER_UNRELIABLE && slot->hdr.op != FER_OP_SKIP) {
		/* nobody wants it late: only its place in the sequence is filled */
		slot->hdr = (struct fer_hdr){
			.op = FER_OP_SKIP, .epoch = link->epoch, .seq = seq,
		};
		fer_count(link, FER_STAT_SKIPPED);
	} else {
		fer_count(link, FER_STAT_RESENT);
	}
	transmit(link, slot, now);
}

/* All before ack have arrived. */
static void take_ack(struct fer_link *link, u32 ack, u64 now)
{
	if ((s32)(ack - link->tx_una) <= 0 || (s32)(link->tx_next - ack) < 0)
		return;
	while (link->tx_una != ack) {
		struct fer_txslot *slot = &link->tx[link->tx_una++ & MASK];

		fer_link_put(link, slot->frame);
		slot->frame = NULL;
	}
	link->progress = now;
	link->rto = rto_us * (u64)NSEC_PER_USEC;
}

/* The peer has some frames behind the first missing one: send those between again. */
static void take_bitmap(struct fer_link *link, u32 ack, const u8 *bits, u64 now)
{
	int last = -1, i;

	if (ack != link->tx_una)
		return; /* about what is acknowledged meanwhile */
	for (i = 0; i < FER_WINDOW - 1; i++)
		if (bits[i / 8] & (1 << (i % 8)))
			last = i;
	for (i = -1; i < last; i++) {
		u32 seq = ack + 1 + i;

		if ((s32)(link->tx_next - seq) <= 0)
			return;
		if (i >= 0 && bits[i / 8] & (1 << (i % 8)))
			continue;
		if (now - link->tx[seq & MASK].sent > RESEND_GAP)
			resend(link, seq, now);
	}
}

static void send_ack(struct fer_link *link)
{
	struct fer_hdr hdr = {
		.op = FER_OP_LINK_ACK, .len = 32, .epoch = link->epoch,
		.ack = link->rx_next, .window = FER_WINDOW,
	};
	u8 *bits = link->ack_buf + FER_HDR;
	int i;

	memset(bits, 0, 32);
	if (link->held_count)
		for (i = 0; i < FER_WINDOW - 1; i++)
			if (link->held[(link->rx_next + 1 + i) & MASK])
				bits[i / 8] |= 1 << (i % 8);
	fer_hdr_seal(link->ack_buf, &hdr);
	link->wire->tx(link, link->ack_buf, sizeof(link->ack_buf));
	link->rx_unacked = 0;
	link->ack_due = 0;
	link->ack_now = false;
}

/* ---- receiving ---- */

static void deliver(struct fer_link *link, const struct fer_hdr *hdr, u8 *payload)
{
	struct fer_qp *qp;

	if (hdr->op == FER_OP_SKIP)
		return;
	qp = fer_qp_find(link->dev, hdr->dqpn);
	if (!qp) {
		fer_count(link, FER_STAT_NO_QP);
		return;
	}
	mutex_lock(&qp->lock);
	if (hdr->op == FER_OP_DGRAM) {
		fer_dgram_take(qp, hdr, payload);
	} else if (hdr->sqpn != qp->peer_qpn || qp->state < IB_QPS_RTR ||
		   qp->state > IB_QPS_SQD) {
		fer_count(link, FER_STAT_WRONG_PEER);
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

static void deliver_held(struct fer_link *link)
{
	struct fer_frame *frame;
	struct fer_hdr hdr;

	while (link->held_count) {
		frame = link->held[link->rx_next & MASK];
		if (!frame)
			return;
		link->held[link->rx_next & MASK] = NULL;
		link->held_count--;
		if (fer_hdr_open(frame->data, frame->size, &hdr) != FER_OK) {
			/* it changed while it lay here: as if it had not come */
			fer_count(link, FER_STAT_RX_BAD_FRAME);
			link->wire->put_rx(link, frame);
			return;
		}
		link->rx_next++;
		deliver(link, &hdr, frame->data + FER_HDR);
		link->wire->put_rx(link, frame);
	}
}

static bool check(struct fer_link *link, struct fer_frame *frame, struct fer_hdr *hdr)
{
	enum fer_bad bad = fer_hdr_open(frame->data, frame->size, hdr);

	if (bad == FER_BAD_CRC)
		fer_count(link, FER_STAT_RX_BAD_CRC);
	else if (bad != FER_OK)
		fer_count(link, FER_STAT_RX_BAD_FRAME);
	else if (hdr->epoch != link->epoch)
		fer_count(link, FER_STAT_RX_STALE_EPOCH);
	else
		return true;
	return false;
}

void fer_link_rx(struct fer_link *link, struct fer_frame *frame)
{
	u64 now = ktime_get_ns();
	struct fer_hdr hdr;
	s32 ahead;

	fer_count(link, FER_STAT_RX_FRAMES);
	link->stats[FER_STAT_RX_BYTES] += frame->size;
	if (!link->up || !check(link, frame, &hdr))
		goto drop;
	take_ack(link, hdr.ack, now);
	if (!fer_in_sequence(hdr.op)) {
		take_bitmap(link, hdr.ack, frame->data + FER_HDR, now);
		goto drop;
	}
	ahead = hdr.seq - link->rx_next;
	if (ahead < 0) {
		fer_count(link, FER_STAT_RX_DUPLICATE);
		link->ack_now = true;
		goto drop;
	}
	if (ahead >= FER_WINDOW) {
		fer_count(link, FER_STAT_RX_BEYOND_WINDOW);
		goto drop;
	}
	if (ahead) {
		link->ack_now = true;
		if (link->held[hdr.seq & MASK]) {
			fer_count(link, FER_STAT_RX_DUPLICATE);
			goto drop;
		}
		fer_count(link, FER_STAT_RX_OUT_OF_ORDER);
		link->held[hdr.seq & MASK] = frame;
		link->held_count++;
		return;
	}
	link->rx_next++;
	link->rx_unacked++;
	if (!link->ack_due)
		link->ack_due = now + ACK_DELAY;
	deliver(link, &hdr, frame->data + FER_HDR);
	link->wire->put_rx(link, frame);
	deliver_held(link);
	return;
drop:
	link->wire->put_rx(link, frame);
}

/* ---- the session ---- */

static void drop_frames(struct fer_link *link)
{
	int i;

	for (i = 0; i < FER_WINDOW; i++) {
		if (link->tx[i].frame)
			fer_link_put(link, link->tx[i].frame);
		link->tx[i].frame = NULL;
		if (link->held[i])
			link->wire->put_rx(link, link->held[i]);
		link->held[i] = NULL;
	}
	link->held_count = 0;
}

static void port_event(struct fer_link *link, enum ib_event_type type)
{
	struct ib_event event = {
		.device = &link->dev->ib, .element.port_num = 1, .event = type,
	};

	ib_dispatch_event(&event);
}

/* The peer does not answer: everything under way fails, and a new session begins. */
static void restart(struct fer_link *link)
{
	struct fer_qp *qp;
	unsigned long i;

	dev_warn(&link->dev->ib.dev, "no answer for %llu s; outstanding work fails\n",
		 DEAD_AFTER / NSEC_PER_SEC);
	link->up = false;
	port_event(link, IB_EVENT_PORT_ERR);
	for (i = 0; i <= FER_QPN_MASK; i++) {
		xa_lock(&link->dev->qps);
		qp = xa_find(&link->dev->qps, &i, FER_QPN_MASK, XA_PRESENT);
		if (qp)
			kref_get(&qp->ref);
		xa_unlock(&link->dev->qps);
		if (!qp)
			break;
		mutex_lock(&qp->lock);
		if (qp->state >= IB_QPS_RTR && qp->state != IB_QPS_ERR)
			fer_qp_fail(qp);
		mutex_unlock(&qp->lock);
		fer_qp_put(qp);
	}
	drop_frames(link);
	link->epoch = get_random_u32();
	link->tx_una = link->tx_next = link->rx_next = get_random_u32();
	link->up = true;
	port_event(link, IB_EVENT_PORT_ACTIVE);
}

/* ---- the thread ---- */

static void run_qps(struct fer_link *link)
{
	struct fer_qp *qp;
	int rounds = 64;
	bool more;

	while (rounds--) {
		spin_lock(&link->qp_lock);
		qp = list_first_entry_or_null(&link->active, struct fer_qp, active_node);
		if (qp) {
			list_del_init(&qp->active_node);
			qp->is_active = false;
		}
		spin_unlock(&link->qp_lock);
		if (!qp)
			return;
		mutex_lock(&qp->lock);
		more = fer_qp_run(qp);
		mutex_unlock(&qp->lock);
		if (more)
			fer_qp_activate(qp);
		fer_qp_put(qp); /* that of the list */
		if (more && link->tx_next - link->tx_una >= FER_WINDOW)
			return;
	}
}

static struct fer_qp *expired_qp(struct fer_link *link, u64 now)
{
	struct fer_qp *qp, *found = NULL;

	link->next_timer = KTIME_MAX;
	spin_lock(&link->qp_lock);
	list_for_each_entry(qp, &link->timed, timed_node) {
		if (qp->deadline <= now) {
			found = qp;
			list_del_init(&qp->timed_node);
			qp->is_timed = false;
			link->next_timer = 0; /* look again */
			break;
		}
		link->next_timer = min(link->next_timer, qp->deadline);
	}
	spin_unlock(&link->qp_lock);
	return found;
}

static void run_timers(struct fer_link *link, u64 now)
{
	struct fer_txslot *oldest;
	struct fer_qp *qp;

	if (link->ack_now || link->rx_unacked >= ACK_EVERY ||
	    (link->rx_unacked && now >= link->ack_due))
		send_ack(link);
	if (link->tx_una != link->tx_next) {
		oldest = &link->tx[link->tx_una & MASK];
		if (oldest->tries >= DEAD_TRIES && now > link->progress &&
		    now - link->progress > DEAD_AFTER) {
			restart(link);
		} else if (now > oldest->sent && now - oldest->sent > link->rto) {
			link->rto = min_t(u64, link->rto * 2, RTO_MAX);
			resend(link, link->tx_una, now);
		}
	}
	if (now < link->next_timer)
		return;
	while ((qp = expired_qp(link, now))) {
		mutex_lock(&qp->lock);
		fer_req_timeout(qp, now);
		mutex_unlock(&qp->lock);
		fer_qp_put(qp);
	}
}

static u64 next_wake(struct fer_link *link)
{
	u64 due = min(link->wire->next_due(link), READ_ONCE(link->next_timer));

	if (link->rx_unacked)
		due = min(due, link->ack_due);
	if (link->tx_una != link->tx_next)
		due = min(due, link->tx[link->tx_una & MASK].sent + link->rto);
	return due;
}

/* Until something happens, or something is due. */
static void doze(struct fer_link *link, u64 now)
{
	u64 due = READ_ONCE(link->sleep_until);

	if (due > now)
		wait_event_interruptible_hrtimeout(link->wait, atomic_read(&link->kicked) ||
						   kthread_should_stop(),
						   ns_to_ktime(due - now));
}

/* Something could be sent at once. */
static bool can_send(struct fer_link *link)
{
	bool any;

	spin_lock(&link->qp_lock);
	any = !list_empty(&link->active);
	spin_unlock(&link->qp_lock);
	return any && link->up && link->tx_next - link->tx_una < FER_WINDOW;
}

/* One round of everything, holding link->engine. True: there was something to do. */
static bool work(struct fer_link *link)
{
	u32 sent = link->tx_next;
	u64 now;
	int got;

	atomic_set(&link->kicked, 0);
	smp_mb__after_atomic(); /* what was posted before the kick is seen below */
	got = link->wire->poll(link, 64);
	run_qps(link);
	now = ktime_get_ns();
	run_timers(link, now);
	if (!got && link->tx_next == sent && !can_send(link))
		return false;
	link->last_busy = now;
	return true;
}

/* Do the work in the caller's context, if nobody else does. */
void fer_link_drive(struct fer_link *link)
{
	bool busy = true;
	int rounds = 64;

	if (!mutex_trylock(&link->engine)) {
		fer_link_kick(link);
		return;
	}
	while (busy && rounds-- && !need_resched()) {
		busy = work(link);
		if (!busy && link->rx_unacked) {
			send_ack(link); /* no need to wake the thread for that */
			busy = true;
		}
	}
	busy |= next_wake(link) < link->sleep_until;
	mutex_unlock(&link->engine);
	if (busy || atomic_read(&link->kicked))
		fer_link_kick(link);
}

static int link_main(void *arg)
{
	struct fer_link *link = arg;

	set_user_nice(current, MIN_NICE);
	while (!kthread_should_stop()) {
		bool spin;
		u64 now;

		mutex_lock(&link->engine);
		spin = work(link);
		now = ktime_get_ns();
		if (now - link->last_busy < spin_us * (u64)NSEC_PER_USEC)
			spin = true;
		link->sleep_until = spin ? 0 : min(next_wake(link), now + NSEC_PER_SEC);
		mutex_unlock(&link->engine);
		cond_resched();
		if (spin)
			cpu_relax();
		else
			doze(link, now);
	}
	return 0;
}

static void free_frames(struct fer_link *link)
{
	struct fer_frame *frame, *next;

	list_for_each_entry_safe(frame, next, &link->free, node) {
		free_page((unsigned long)frame->data);
		kfree(frame);
	}
}

static int alloc_frames(struct fer_link *link)
{
	int i;

	for (i = 0; i < FRAMES; i++) {
		struct fer_frame *frame = kzalloc(sizeof(*frame), GFP_KERNEL);

		if (!frame)
			return -ENOMEM;
		frame->data = (u8 *)get_zeroed_page(GFP_KERNEL);
		if (!frame->data) {
			kfree(frame);
			return -ENOMEM;
		}
		list_add(&frame->node, &link->free);
	}
	return 0;
}

struct fer_link *fer_link_create(struct fer_dev *dev, const struct fer_wire_ops *wire)
{
	struct fer_link *link = kvzalloc(sizeof(*link), GFP_KERNEL);
	int err;

	BUILD_BUG_ON(FER_WINDOW & MASK || FER_WINDOW / 8 != 32);
	if (!link)
		return ERR_PTR(-ENOMEM);
	link->dev = dev;
	link->wire = wire;
	init_waitqueue_head(&link->wait);
	mutex_init(&link->engine);
	spin_lock_init(&link->qp_lock);
	INIT_LIST_HEAD(&link->active);
	INIT_LIST_HEAD(&link->timed);
	INIT_LIST_HEAD(&link->free);
	link->epoch = get_random_u32();
	link->tx_next = get_random_u32();
	link->tx_una = link->tx_next;
	link->rx_next = link->tx_next;
	link->next_timer = KTIME_MAX;
	err = alloc_frames(link);
	if (err)
		goto free;
	err = wire->start(link);
	if (err)
		goto free;
	link->up = true;
	link->thread = kthread_run(link_main, link, "ferrule-%s", wire->name);
	if (IS_ERR(link->thread)) {
		err = PTR_ERR(link->thread);
		wire->stop(link);
		goto free;
	}
	return link;
free:
	free_frames(link);
	kvfree(link);
	return ERR_PTR(err);
}

/* All queue pairs are gone by now. */
void fer_link_destroy(struct fer_link *link)
{
	kthread_stop(link->thread);
	drop_frames(link);
	link->wire->stop(link);
	free_frames(link);
	kvfree(link);
}
