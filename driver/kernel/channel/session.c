// SPDX-License-Identifier: GPL-2.0
/*
 * Sessions and rails. A session begins with an epoch that both ends agreed on, and ends when
 * no rail is left or nothing is acknowledged for some seconds. Rails come and go in it.
 */
#include <linux/ktime.h>
#include <linux/module.h>

#include "device/trace.h"

#define KEEPALIVE_NS	((u64)NSEC_PER_SEC)
#define SILENT_TICKS	4

static unsigned int dead_ms = 3000;
module_param(dead_ms, uint, 0644);
MODULE_PARM_DESC(dead_ms, "milliseconds of silence after which a rail, or the peer, is lost");

/* which rails are joined to which channel */
DEFINE_MUTEX(fer_topology);

u64 fer_dead_after_ns(void)
{
	return max(READ_ONCE(dead_ms), 100u) * (u64)NSEC_PER_MSEC;
}

/* Not for a device that is not registered yet, or not any more. */
static void port_event(struct fer_channel *channel, enum ib_event_type type)
{
	struct ib_event event = {
		.device = &channel->dev->ib, .element.port_num = 1, .event = type,
	};

	if (!ib_device_try_get(&channel->dev->ib))
		return;
	ib_dispatch_event(&event);
	ib_device_put(&channel->dev->ib);
}

static void drop_frames(struct fer_channel *channel)
{
	struct fer_rail *rail;
	int i;

	for (i = 0; i < FER_WINDOW; i++) {
		if (channel->tx[i].frame)
			fer_channel_put(channel, channel->tx[i].frame);
		channel->tx[i].frame = NULL;
	}
	fer_each_rail(channel, rail, i) {
		fer_channel_unhold(channel, rail);
		rail->unacked = 0;
	}
}

/* There may be requests that waited for a session. */
static void wake_qps(struct fer_channel *channel)
{
	struct fer_qp *qp;
	unsigned long i;

	for (i = 0; (qp = fer_qp_next(channel->dev, &i)); i++) {
		fer_qp_activate(qp);
		fer_qp_put(qp);
	}
}

static void fail_qps(struct fer_channel *channel, const char *why)
{
	struct fer_qp *qp;
	unsigned long i;

	for (i = 0; (qp = fer_qp_next(channel->dev, &i)); i++) {
		mutex_lock(&qp->lock);
		/* datagrams promise nothing: they go on in the next session */
		if (!fer_is_ud(qp) && qp->state >= IB_QPS_RTR && qp->state != IB_QPS_ERR)
			fer_qp_fail(qp, why);
		mutex_unlock(&qp->lock);
		fer_qp_put(qp);
	}
	fer_channel_kick(channel); /* they are to be flushed */
}

/* All that is under way fails, and the port is down. Under the engine, as all below. */
void fer_session_end(struct fer_channel *channel, const char *why)
{
	lockdep_assert_held(&channel->engine);
	if (!channel->up)
		return;
	dev_info(&channel->dev->ib.dev, "port down: %s\n", why);
	trace_fer_session_down(channel, -1, channel->epoch, why);
	WRITE_ONCE(channel->up, false);
	if (channel->dev->netdev)
		netif_carrier_off(channel->dev->netdev);
	port_event(channel, IB_EVENT_PORT_ERR);
	fail_qps(channel, why);
	drop_frames(channel);
	channel->tx_una = channel->tx_next;
	channel->rx_unacked = 0;
	channel->ack_now = false;
	channel->epoch = 0;
}

/* The epoch for a rail that comes up; not under the engine. */
u32 fer_session_offer(struct fer_channel *channel, u32 fresh)
{
	u32 epoch;

	mutex_lock(&channel->engine);
	if (!channel->up && !channel->offered)
		channel->offered = fresh;
	epoch = channel->up ? channel->epoch : channel->offered;
	mutex_unlock(&channel->engine);
	return epoch;
}

void fer_session_begin(struct fer_channel *channel, u32 epoch, u32 window)
{
	lockdep_assert_held(&channel->engine);
	channel->offered = 0;
	channel->epoch = epoch;
	channel->last_epoch = epoch;
	channel->tx_una = epoch;
	channel->tx_next = epoch;
	channel->rx_next = epoch;
	channel->window = clamp_t(u32, window, 1, FER_WINDOW);
	trace_fer_session_up(channel, -1, epoch, "its first rail is up");
	WRITE_ONCE(channel->up, true);
	if (channel->dev->netdev)
		netif_carrier_on(channel->dev->netdev);
	port_event(channel, IB_EVENT_PORT_ACTIVE);
	wake_qps(channel);
}

/* ---- rails ---- */

/* Under fer_topology, as fer_rail_leave(). */
int fer_rail_join(struct fer_channel *channel, struct fer_rail *rail)
{
	int i, err = -ENOSPC;

	lockdep_assert_held(&fer_topology);
	mutex_lock(&channel->engine);
	for (i = 0; i < FER_MAX_RAILS && err; i++) {
		if (channel->rails[i])
			continue;
		rail->channel = channel;
		rail->index = i;
		rail->up = false;
		rail->unacked = 0;
		rail->sent_order = 0;
		rail->acked_order = 0;
		rail->moved_ns = 0;
		rail->doubted_until_ns = 0;
		channel->rails[i] = rail;
		err = 0;
	}
	mutex_unlock(&channel->engine);
	return err;
}

void fer_rail_leave(struct fer_rail *rail)
{
	struct fer_channel *channel = rail->channel;

	lockdep_assert_held(&fer_topology);
	if (rail->ops->leave)
		rail->ops->leave(rail);
	mutex_lock(&channel->engine);
	fer_rail_down(rail, "it leaves");
	channel->offered = 0; /* perhaps it was refused */
	channel->rails[rail->index] = NULL;
	WRITE_ONCE(rail->channel, NULL);
	mutex_unlock(&channel->engine);
	if (rail->ops->left)
		rail->ops->left(rail);
}

/*
 * From now on frames go this way, in the session of that epoch. False: that session is over on
 * this side; begun anew here alone, its numbers would not fit. Not under the engine.
 */
bool fer_rail_up(struct fer_rail *rail, u32 epoch, u32 window)
{
	struct fer_channel *channel = rail->channel;
	u64 now = ktime_get_ns();
	struct fer_rail *other;
	int i;

	mutex_lock(&channel->engine);
	if (!channel->up && epoch == channel->last_epoch) {
		mutex_unlock(&channel->engine);
		return false;
	}
	if (channel->epoch != epoch)
		fer_session_end(channel, "the peer began a new session");
	rail->up = true;
	trace_fer_rail_up(channel, rail->index, epoch, "agreed with the peer");
	rail->last_tx_ns = 0;
	rail->last_tick_ns = now;
	rail->silent = 0;
	if (!channel->up) {
		fer_each_rail(channel, other, i) {
			if (other == rail || !other->up)
				continue;
			other->up = false; /* of the old session: the peer does not listen there */
			trace_fer_rail_down(channel, i, epoch, "the peer began a new session");
			other->ops->lost(other);
		}
		fer_session_begin(channel, epoch, window);
	}
	mutex_unlock(&channel->engine);
	fer_channel_kick(channel);
	return true;
}

/* It carries nothing any more: what went over it goes another way, if there is one. */
void fer_rail_down(struct fer_rail *rail, const char *why)
{
	struct fer_channel *channel = rail->channel;
	struct fer_rail *other;
	bool any = false;
	int i;

	lockdep_assert_held(&channel->engine);
	fer_channel_unhold(channel, rail);
	if (!rail->up)
		return;
	rail->up = false;
	trace_fer_rail_down(channel, rail->index, channel->epoch, why);
	rail->losses++;
	fer_each_rail(channel, other, i)
		any |= other->up;
	if (any)
		fer_channel_reroute(channel, rail, ktime_get_ns());
	else
		fer_session_end(channel, "the last rail is down");
	for (i = 0; i < FER_WINDOW; i++)
		if (channel->tx[i].rail == rail)
			channel->tx[i].rail = NULL;
	rail->unacked = 0;
}

/*
 * An idle rail says each second that it is there, and a silent one is given up. Its silence is
 * counted in ticks, so that a machine that stood still itself does not take its peer for lost.
 */
void fer_rails_check(struct fer_channel *channel, u64 now)
{
	u64 tick = fer_dead_after_ns() / SILENT_TICKS;
	struct fer_rail *rail;
	int i;

	lockdep_assert_held(&channel->engine);
	fer_each_rail(channel, rail, i) {
		if (!rail->up)
			continue;
		/* last_tx may be behind now: an acknowledgment has just gone */
		if ((s64)(now - rail->last_tx_ns) >= (s64)KEEPALIVE_NS)
			fer_channel_ack(channel, rail);
		if (now - rail->last_tick_ns < tick)
			continue;
		rail->last_tick_ns = now;
		if (rail->silent++ < SILENT_TICKS)
			continue;
		dev_warn(&channel->dev->ib.dev, "rail %d: nothing comes any more\n", i);
		fer_rail_down(rail, "nothing comes any more");
		rail->ops->lost(rail);
	}
}
