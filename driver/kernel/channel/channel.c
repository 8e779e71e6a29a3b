// SPDX-License-Identifier: GPL-2.0
/*
 * The channel to a peer: frames in sequence, each until it is acknowledged, over wires that
 * may lose, damage, repeat and reorder them. All of a device's work is done by the holder of
 * channel->engine: the channel's thread, or a process that rang a doorbell and so saves the
 * way to the thread and back.
 */
#include <linux/crc32c.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "device/trace.h"

#define ACK_EVERY	32
#define DEAD_TRIES	8	/* so that a machine that stood still itself asks again first */

static unsigned int spin_us = 50;
module_param(spin_us, uint, 0644);
MODULE_PARM_DESC(spin_us, "microseconds of polling before the channel's thread sleeps");

u32 fer_crc32c(const u8 *head, size_t head_len, const u8 *tail, size_t tail_len)
{
	return ~crc32c(crc32c(~0u, head, head_len), tail, tail_len);
}

void fer_channel_kick(struct fer_channel *channel)
{
	atomic_set(&channel->kicked, 1);
	/* pairs with the barrier in set_current_state() of the sleeping thread */
	smp_mb();
	/* after the barrier: the thread is seen waiting, or it sees the kick */
	if (waitqueue_active(&channel->wait))
		wake_up(&channel->wait);
}

/* ---- the thread ---- */

static void run_qps(struct fer_channel *channel)
{
	struct fer_qp *qp;
	int rounds = 64;
	bool more;

	while (rounds--) {
		spin_lock_irq(&channel->qp_lock);
		qp = list_first_entry_or_null(&channel->active, struct fer_qp, active_node);
		if (qp) {
			list_del_init(&qp->active_node);
			qp->is_active = false;
		}
		spin_unlock_irq(&channel->qp_lock);
		if (!qp)
			return;
		mutex_lock(&qp->lock);
		more = fer_qp_run(qp);
		mutex_unlock(&qp->lock);
		if (more)
			fer_qp_activate(qp);
		fer_qp_put(qp); /* that of the list */
		if (more && channel->tx_next - channel->tx_una >= channel->window)
			return;
	}
}

static struct fer_qp *expired_qp(struct fer_channel *channel, u64 now)
{
	struct fer_qp *qp, *found = NULL;

	channel->next_timer_ns = KTIME_MAX;
	spin_lock_irq(&channel->qp_lock);
	list_for_each_entry(qp, &channel->timed, timed_node) {
		if (qp->deadline_ns <= now) {
			found = qp;
			list_del_init(&qp->timed_node);
			qp->is_timed = false;
			channel->next_timer_ns = 0; /* look again */
			break;
		}
		channel->next_timer_ns = min(channel->next_timer_ns, qp->deadline_ns);
	}
	spin_unlock_irq(&channel->qp_lock);
	return found;
}

/* The peer acknowledges nothing: there is no use in any of the rails. */
static void give_up(struct fer_channel *channel)
{
	struct fer_rail *rail;
	int i;

	fer_session_end(channel, "nothing is acknowledged");
	fer_each_rail(channel, rail, i) {
		if (!rail->up)
			continue;
		rail->up = false;
		trace_fer_rail_down(channel, i, channel->epoch, "nothing is acknowledged");
		rail->losses++;
		rail->ops->lost(rail);
	}
}

static void run_timers(struct fer_channel *channel, u64 now)
{
	struct fer_qp *qp;

	if (channel->ack_now || channel->rx_unacked >= ACK_EVERY ||
	    (channel->rx_unacked && now >= channel->ack_due_ns))
		fer_channel_ack(channel, NULL);
	fer_rails_check(channel, now);
	if (channel->tx_una != channel->tx_next) {
		if (channel->tx[FER_SLOT(channel->tx_una)].tries >= DEAD_TRIES &&
		    now > channel->progress_ns &&
		    now - channel->progress_ns > fer_dead_after_ns())
			give_up(channel);
		else
			fer_channel_late(channel, now);
	}
	if (now < channel->next_timer_ns)
		return;
	while ((qp = expired_qp(channel, now))) {
		mutex_lock(&qp->lock);
		fer_req_timeout(qp, now);
		mutex_unlock(&qp->lock);
		fer_qp_put(qp);
		fer_channel_kick(channel); /* it may have something to do now */
	}
}

static u64 next_wake(struct fer_channel *channel)
{
	u64 due = READ_ONCE(channel->next_timer_ns);
	struct fer_rail *rail;
	int i;

	lockdep_assert_held(&channel->engine);
	fer_each_rail(channel, rail, i)
		if (rail->ops->next_due)
			due = min(due, rail->ops->next_due(rail));
	if (channel->rx_unacked)
		due = min(due, channel->ack_due_ns);
	if (channel->tx_una != channel->tx_next)
		due = min(due, fer_channel_late_at(channel));
	return due;
}

/* Until something happens, or something is due. */
static void doze(struct fer_channel *channel, u64 now)
{
	u64 due = READ_ONCE(channel->sleep_until_ns);

	if (due > now)
		wait_event_interruptible_hrtimeout(channel->wait, atomic_read(&channel->kicked) ||
						   kthread_should_stop(),
						   ns_to_ktime(due - now));
}

/* Something could be sent, or flushed, at once. */
static bool can_send(struct fer_channel *channel)
{
	bool any;

	spin_lock_irq(&channel->qp_lock);
	any = !list_empty(&channel->active);
	spin_unlock_irq(&channel->qp_lock);
	return any && (!channel->up || channel->tx_next - channel->tx_una < channel->window);
}

/* One round of everything, holding channel->engine. True: there was something to do. */
static bool work(struct fer_channel *channel)
{
	u32 sent = channel->tx_next;
	struct fer_rail *rail;
	int i, got = 0;
	u64 now;

	lockdep_assert_held(&channel->engine);
	atomic_set(&channel->kicked, 0);
	smp_mb(); /* what was posted before the kick is seen below */
	fer_each_rail(channel, rail, i)
		got += rail->ops->poll(rail, 64);
	run_qps(channel);
	now = ktime_get_ns();
	run_timers(channel, now);
	if (!got && channel->tx_next == sent && !can_send(channel))
		return false;
	channel->last_busy_ns = now;
	return true;
}

/* The next frame of any rail is to wake the thread. True: there is one already. */
static bool arm(struct fer_channel *channel)
{
	struct fer_rail *rail;
	bool here = false;
	int i;

	lockdep_assert_held(&channel->engine);
	fer_each_rail(channel, rail, i)
		if (rail->ops->arm)
			here |= rail->ops->arm(rail);
	return here;
}

/* Do the work in the caller's context, if no other thread does. */
void fer_channel_drive(struct fer_channel *channel)
{
	bool busy = true;
	int rounds = 64;

	if (!mutex_trylock(&channel->engine)) {
		fer_channel_kick(channel);
		return;
	}
	while (busy && rounds-- && !need_resched()) {
		busy = work(channel);
		if (!busy && channel->rx_unacked) {
			fer_channel_ack(channel, NULL); /* no need to wake the thread for that */
			busy = true;
		}
	}
	/*
	 * The thread sleeps on if an interrupt woke it and its kick was taken here: the
	 * taker of the kick allows the interrupt again.
	 */
	if (!busy && channel->sleep_until_ns)
		busy = arm(channel);
	busy |= next_wake(channel) < channel->sleep_until_ns;
	mutex_unlock(&channel->engine);
	if (busy || atomic_read(&channel->kicked))
		fer_channel_kick(channel);
}

static int channel_main(void *arg)
{
	struct fer_channel *channel = arg;

	set_user_nice(current, MIN_NICE);
	while (!kthread_should_stop()) {
		bool spin;
		u64 now;

		mutex_lock(&channel->engine);
		spin = work(channel);
		now = ktime_get_ns();
		if (now - channel->last_busy_ns < READ_ONCE(spin_us) * (u64)NSEC_PER_USEC)
			spin = true;
		if (!spin)
			spin = arm(channel);
		channel->sleep_until_ns = spin ? 0 : min(next_wake(channel), now + NSEC_PER_SEC);
		mutex_unlock(&channel->engine);
		cond_resched();
		if (spin)
			cpu_relax();
		else
			doze(channel, now);
	}
	return 0;
}

static void free_frames(struct fer_channel *channel)
{
	int i;

	for (i = 0; i < FER_FRAMES; i++)
		free_page((unsigned long)channel->frames[i].data);
}

static int alloc_frames(struct fer_channel *channel)
{
	int i;

	for (i = 0; i < FER_FRAMES; i++) {
		struct fer_frame *frame = &channel->frames[i];

		frame->index = i;
		frame->data = (u8 *)get_zeroed_page(GFP_KERNEL);
		if (!frame->data)
			return -ENOMEM;
		list_add(&frame->node, &channel->free);
	}
	return 0;
}

/* Without rails, and so without a session. */
struct fer_channel *fer_channel_create(struct fer_dev *dev, const char *name)
{
	struct fer_channel *channel = kvzalloc(sizeof(*channel), GFP_KERNEL);
	int err;

	BUILD_BUG_ON_NOT_POWER_OF_2(FER_WINDOW);
	BUILD_BUG_ON(FER_WINDOW != 8 * FER_ACK_MAP);
	if (!channel)
		return ERR_PTR(-ENOMEM);
	channel->dev = dev;
	init_waitqueue_head(&channel->wait);
	mutex_init(&channel->engine);
	spin_lock_init(&channel->qp_lock);
	INIT_LIST_HEAD(&channel->active);
	INIT_LIST_HEAD(&channel->timed);
	INIT_LIST_HEAD(&channel->free);
	channel->next_timer_ns = KTIME_MAX;
	err = alloc_frames(channel);
	if (err)
		goto free;
	channel->thread = kthread_run(channel_main, channel, "ferrule-%s", name);
	if (IS_ERR(channel->thread)) {
		err = PTR_ERR(channel->thread);
		goto free;
	}
	return channel;
free:
	free_frames(channel);
	kvfree(channel);
	return ERR_PTR(err);
}

/* All queue pairs and all rails are gone by now. */
void fer_channel_destroy(struct fer_channel *channel)
{
	kthread_stop(channel->thread);
	free_frames(channel);
	kvfree(channel);
}
