// SPDX-License-Identifier: GPL-2.0
/*
 * The link: frames in sequence, each until it is acknowledged, over a wire that
 * may lose, damage, repeat and reorder them. All of a device's work is done by the
 * holder of link->engine: the link's thread, or a process that rang a doorbell and so saves
 * the way to the thread and back.
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
MODULE_PARM_DESC(spin_us, "microseconds of polling before the link's thread sleeps");

u32 fer_crc32c(const u8 *head, size_t head_len, const u8 *tail, size_t tail_len)
{
	return ~crc32c(crc32c(~0u, head, head_len), tail, tail_len);
}

void fer_link_kick(struct fer_link *link)
{
	atomic_set(&link->kicked, 1);
	/* pairs with the barrier in set_current_state() of the sleeping thread */
	smp_mb();
	/* after the barrier: the thread is seen waiting, or it sees the kick */
	if (waitqueue_active(&link->wait))
		wake_up(&link->wait);
}

/* ---- the thread ---- */

static void run_qps(struct fer_link *link)
{
	struct fer_qp *qp;
	int rounds = 64;
	bool more;

	while (rounds--) {
		spin_lock_irq(&link->qp_lock);
		qp = list_first_entry_or_null(&link->active, struct fer_qp, active_node);
		if (qp) {
			list_del_init(&qp->active_node);
			qp->is_active = false;
		}
		spin_unlock_irq(&link->qp_lock);
		if (!qp)
			return;
		mutex_lock(&qp->lock);
		more = fer_qp_run(qp);
		mutex_unlock(&qp->lock);
		if (more)
			fer_qp_activate(qp);
		fer_qp_put(qp); /* that of the list */
		if (more && link->tx_next - link->tx_una >= link->window)
			return;
	}
}

static struct fer_qp *expired_qp(struct fer_link *link, u64 now)
{
	struct fer_qp *qp, *found = NULL;

	link->next_timer_ns = KTIME_MAX;
	spin_lock_irq(&link->qp_lock);
	list_for_each_entry(qp, &link->timed, timed_node) {
		if (qp->deadline_ns <= now) {
			found = qp;
			list_del_init(&qp->timed_node);
			qp->is_timed = false;
			link->next_timer_ns = 0; /* look again */
			break;
		}
		link->next_timer_ns = min(link->next_timer_ns, qp->deadline_ns);
	}
	spin_unlock_irq(&link->qp_lock);
	return found;
}

/* The peer acknowledges nothing: there is no use in any of the rails. */
static void give_up(struct fer_link *link)
{
	struct fer_rail *rail;
	int i;

	fer_session_end(link, "nothing is acknowledged");
	fer_each_rail(link, rail, i) {
		if (!rail->up)
			continue;
		rail->up = false;
		trace_fer_rail_down(link, i, link->epoch, "nothing is acknowledged");
		rail->losses++;
		rail->ops->lost(rail);
	}
}

static void run_timers(struct fer_link *link, u64 now)
{
	struct fer_qp *qp;

	if (link->ack_now || link->rx_unacked >= ACK_EVERY ||
	    (link->rx_unacked && now >= link->ack_due_ns))
		fer_link_ack(link, NULL);
	fer_rails_check(link, now);
	if (link->tx_una != link->tx_next) {
		if (link->tx[FER_SLOT(link->tx_una)].tries >= DEAD_TRIES &&
		    now > link->progress_ns && now - link->progress_ns > fer_dead_after_ns())
			give_up(link);
		else
			fer_link_late(link, now);
	}
	if (now < link->next_timer_ns)
		return;
	while ((qp = expired_qp(link, now))) {
		mutex_lock(&qp->lock);
		fer_req_timeout(qp, now);
		mutex_unlock(&qp->lock);
		fer_qp_put(qp);
		fer_link_kick(link); /* it may have something to do now */
	}
}

static u64 next_wake(struct fer_link *link)
{
	u64 due = READ_ONCE(link->next_timer_ns);
	struct fer_rail *rail;
	int i;

	lockdep_assert_held(&link->engine);
	fer_each_rail(link, rail, i)
		if (rail->ops->next_due)
			due = min(due, rail->ops->next_due(rail));
	if (link->rx_unacked)
		due = min(due, link->ack_due_ns);
	if (link->tx_una != link->tx_next)
		due = min(due, fer_link_late_at(link));
	return due;
}

/* Until something happens, or something is due. */
static void doze(struct fer_link *link, u64 now)
{
	u64 due = READ_ONCE(link->sleep_until_ns);

	if (due > now)
		wait_event_interruptible_hrtimeout(link->wait, atomic_read(&link->kicked) ||
						   kthread_should_stop(),
						   ns_to_ktime(due - now));
}

/* Something could be sent, or flushed, at once. */
static bool can_send(struct fer_link *link)
{
	bool any;

	spin_lock_irq(&link->qp_lock);
	any = !list_empty(&link->active);
	spin_unlock_irq(&link->qp_lock);
	return any && (!link->up || link->tx_next - link->tx_una < link->window);
}

/* One round of everything, holding link->engine. True: there was something to do. */
static bool work(struct fer_link *link)
{
	u32 sent = link->tx_next;
	struct fer_rail *rail;
	int i, got = 0;
	u64 now;

	lockdep_assert_held(&link->engine);
	atomic_set(&link->kicked, 0);
	smp_mb(); /* what was posted before the kick is seen below */
	fer_each_rail(link, rail, i)
		got += rail->ops->poll(rail, 64);
	run_qps(link);
	now = ktime_get_ns();
	run_timers(link, now);
	if (!got && link->tx_next == sent && !can_send(link))
		return false;
	link->last_busy_ns = now;
	return true;
}

/* The next frame of any rail is to wake the thread. True: there is one already. */
static bool arm(struct fer_link *link)
{
	struct fer_rail *rail;
	bool here = false;
	int i;

	lockdep_assert_held(&link->engine);
	fer_each_rail(link, rail, i)
		if (rail->ops->arm)
			here |= rail->ops->arm(rail);
	return here;
}

/* Do the work in the caller's context, if no other thread does. */
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
			fer_link_ack(link, NULL); /* no need to wake the thread for that */
			busy = true;
		}
	}
	/*
	 * The thread sleeps on if an interrupt woke it and its kick was taken here: the
	 * taker of the kick allows the interrupt again.
	 */
	if (!busy && link->sleep_until_ns)
		busy = arm(link);
	busy |= next_wake(link) < link->sleep_until_ns;
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
		if (now - link->last_busy_ns < READ_ONCE(spin_us) * (u64)NSEC_PER_USEC)
			spin = true;
		if (!spin)
			spin = arm(link);
		link->sleep_until_ns = spin ? 0 : min(next_wake(link), now + NSEC_PER_SEC);
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
	int i;

	for (i = 0; i < FER_FRAMES; i++)
		free_page((unsigned long)link->frames[i].data);
}

static int alloc_frames(struct fer_link *link)
{
	int i;

	for (i = 0; i < FER_FRAMES; i++) {
		struct fer_frame *frame = &link->frames[i];

		frame->index = i;
		frame->data = (u8 *)get_zeroed_page(GFP_KERNEL);
		if (!frame->data)
			return -ENOMEM;
		list_add(&frame->node, &link->free);
	}
	return 0;
}

/* Without rails, and so without a session. */
struct fer_link *fer_link_create(struct fer_dev *dev, const char *name)
{
	struct fer_link *link = kvzalloc(sizeof(*link), GFP_KERNEL);
	int err;

	BUILD_BUG_ON_NOT_POWER_OF_2(FER_WINDOW);
	BUILD_BUG_ON(FER_WINDOW != 8 * FER_ACK_MAP);
	if (!link)
		return ERR_PTR(-ENOMEM);
	link->dev = dev;
	init_waitqueue_head(&link->wait);
	mutex_init(&link->engine);
	spin_lock_init(&link->qp_lock);
	INIT_LIST_HEAD(&link->active);
	INIT_LIST_HEAD(&link->timed);
	INIT_LIST_HEAD(&link->free);
	link->next_timer_ns = KTIME_MAX;
	err = alloc_frames(link);
	if (err)
		goto free;
	link->thread = kthread_run(link_main, link, "ferrule-%s", name);
	if (IS_ERR(link->thread)) {
		err = PTR_ERR(link->thread);
		goto free;
	}
	return link;
free:
	free_frames(link);
	kvfree(link);
	return ERR_PTR(err);
}

/* All queue pairs and all rails are gone by now. */
void fer_link_destroy(struct fer_link *link)
{
	kthread_stop(link->thread);
	free_frames(link);
	kvfree(link);
}
