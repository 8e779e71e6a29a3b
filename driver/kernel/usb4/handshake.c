// SPDX-License-Identifier: GPL-2.0
/*
 * Handshake of a rail. One end (by its UUID) says HELLO until it is answered. Of the two hosts
 * one leads, so that all their rails agree on the session: it starts its rings and paths and
 * says START with the session's epoch; the other one does the same and says READY. What goes
 * wrong ends in the beginning. All requests are answered at once, by the handler of packets,
 * and acted upon by the rail's work.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "usb4/tb.h"

#define ANSWER_MS	500	/* for one request */
#define STEP_MS		5000	/* for what the other end is to do next */
#define AGAIN_MS	300	/* before the next HELLO */
#define SLOW_MS		3000	/* the same, after many */
#define MANY		10
#define BYE_MS		100
#define HEADER		12	/* bytes before what length_sn counts */

static void fill_packet(struct fer_tb *tb, struct fer_packet *packet, u32 op, u32 status)
{
	*packet = (struct fer_packet){
		.route_hi = upper_32_bits(tb->xd->route),
		.route_lo = lower_32_bits(tb->xd->route),
		.length_sn = (sizeof(*packet) - HEADER) / 4,
		.protocol = fer_protocol,
		.op = op,
		.from = *tb->xd->local_uuid,
		.to = *tb->xd->remote_uuid,
		.status = status,
	};
}

/* Under tb->lock, as long as ours and theirs are meant. */
static void sign(struct fer_tb *tb, struct fer_packet *packet)
{
	bool first = fer_tb_first(tb);

	lockdep_assert_held(&tb->lock);
	packet->attempt = first ? tb->ours.attempt : tb->theirs.attempt;
	fer_mac(packet->mac, packet, first ? &tb->ours : &tb->theirs,
		first ? &tb->theirs : &tb->ours);
}

static bool signed_right(struct fer_tb *tb, const struct fer_packet *packet)
{
	bool first = fer_tb_first(tb);

	lockdep_assert_held(&tb->lock);
	return packet->attempt == (first ? tb->ours.attempt : tb->theirs.attempt) &&
	       fer_mac_right(packet, first ? &tb->ours : &tb->theirs,
			     first ? &tb->theirs : &tb->ours);
}

/* A new beginning: what was heard before is void. */
static void offer(struct fer_tb *tb, u32 attempt)
{
	lockdep_assert_held(&tb->lock);
	tb->ours = (struct fer_hello){
		.version = FER_TB_VERSION, .caps = fer_tb_caps(), .window = FER_WINDOW,
		.hop = tb->out_hop, .attempt = attempt,
	};
	memcpy(tb->ours.host, fer_host_id, FER_HOST_ID);
	get_random_bytes(tb->ours.nonce, sizeof(tb->ours.nonce));
	tb->heard &= BIT(FER_TB_HELLO);
}

/* ---- what the other end asks for ---- */

/*
 * Said once for each loading of the peer, by both ends; a peer with another id each time
 * must not fill the log. Under tb->lock.
 */
static void refuse(struct fer_tb *tb, u32 status, const struct fer_hello *theirs)
{
	lockdep_assert_held(&tb->lock);
	if (READ_ONCE(tb->refused) && !memcmp(tb->refused_host, theirs->host, FER_HOST_ID))
		return;
	WRITE_ONCE(tb->refused, true);
	memcpy(tb->refused_host, theirs->host, FER_HOST_ID);
	if (status == FER_TB_WRONG_VERSION)
		dev_err_ratelimited(&tb->service->dev,
				    "the peer speaks version %u and we %u: install the same driver on both\n",
				    theirs->version, FER_TB_VERSION);
	else
		dev_err_ratelimited(&tb->service->dev,
				    "the peer has %s key: give both ends the same `key`, or none\n",
				    fer_have_key() ? "another or no" : "a");
}

static u32 check_hello(const struct fer_hello *hello)
{
	if (hello->version != FER_TB_VERSION)
		return FER_TB_WRONG_VERSION;
	if (!memchr_inv(hello->host, 0, FER_HOST_ID))
		return FER_TB_NOT_NOW; /* no host has it */
	return !!(hello->caps & FER_TB_CAP_KEY) == fer_have_key() ? FER_TB_OK : FER_TB_WRONG_KEY;
}

static u32 hear_hello(struct fer_tb *tb, const struct fer_packet *packet)
{
	u32 status = check_hello(&packet->hello);

	if (fer_tb_first(tb))
		return FER_TB_NOT_NOW; /* only our end sends that */
	if (packet->hello.attempt == tb->theirs.attempt)
		return status; /* our answer got lost */
	offer(tb, packet->hello.attempt);
	tb->theirs = packet->hello;
	__assign_bit(FER_TB_HELLO, &tb->heard, status == FER_TB_OK);
	return status;
}

static u32 hear(struct fer_tb *tb, const struct fer_packet *packet)
{
	if (packet->op == FER_TB_HELLO)
		return hear_hello(tb, packet);
	if (!signed_right(tb, packet))
		return packet->attempt == tb->theirs.attempt ? FER_TB_WRONG_KEY : FER_TB_NOT_NOW;
	switch (packet->op) {
	case FER_TB_START:
		tb->epoch = packet->epoch;
		tb->heard |= BIT(FER_TB_START);
		return FER_TB_OK;
	case FER_TB_READY:
		if (packet->epoch != tb->epoch)
			return FER_TB_NOT_NOW;
		tb->heard |= BIT(FER_TB_READY);
		return FER_TB_OK;
	case FER_TB_BYE:
		tb->heard |= BIT(FER_TB_BYE);
		return FER_TB_OK;
	default:
		return FER_TB_NOT_NOW;
	}
}

/* A request, in the context of the control channel: it must not wait for an answer there. */
void fer_tb_hear(struct fer_tb *tb, const struct fer_packet *packet)
{
	struct fer_packet answer;
	u32 status;

	mutex_lock(&tb->lock);
	status = tb->life == FER_TB_PRESENT ? hear(tb, packet) : FER_TB_NOT_NOW;
	if (status == FER_TB_WRONG_VERSION || status == FER_TB_WRONG_KEY)
		refuse(tb, status, &packet->hello);
	fill_packet(tb, &answer, packet->op | FER_TB_ANSWER, status);
	answer.hello = tb->ours;
	answer.epoch = packet->epoch;
	sign(tb, &answer);
	mutex_unlock(&tb->lock);
	tb_xdomain_response(tb->xd, &answer, sizeof(answer), TB_CFG_PKG_XDOMAIN_RESP);
	if (status == FER_TB_OK)
		fer_tb_kick(tb, 0);
}

/* ---- what we ask for ---- */

static int why(struct fer_tb *tb, u32 status, const struct fer_hello *theirs)
{
	if (status == FER_TB_NOT_NOW)
		return -EAGAIN;
	refuse(tb, status, theirs);
	return -EPROTO;
}

static int ask(struct fer_tb *tb, u32 op, u32 epoch, unsigned int ms)
{
	struct fer_packet *packet, *answer;
	u32 attempt, status;
	int err;

	packet = kcalloc(2, sizeof(*packet), GFP_KERNEL);
	if (!packet)
		return -ENOMEM;
	answer = packet + 1;
	mutex_lock(&tb->lock);
	fill_packet(tb, packet, op, FER_TB_OK);
	packet->hello = tb->ours;
	packet->epoch = epoch;
	if (op != FER_TB_HELLO)
		sign(tb, packet);
	attempt = tb->ours.attempt;
	mutex_unlock(&tb->lock);

	err = tb_xdomain_request(tb->xd, packet, sizeof(*packet), TB_CFG_PKG_XDOMAIN_REQ, answer,
				 sizeof(*answer), TB_CFG_PKG_XDOMAIN_RESP, ms);
	if (err)
		goto free;
	mutex_lock(&tb->lock);
	if (answer->op != (op | FER_TB_ANSWER) || attempt != tb->ours.attempt) {
		err = -EAGAIN; /* of an earlier request */
	} else {
		status = answer->status;
		if (op == FER_TB_HELLO) {
			tb->theirs = answer->hello;
			if (status == FER_TB_OK)
				status = check_hello(&answer->hello);
		}
		if (status != FER_TB_OK)
			err = why(tb, status, &answer->hello);
		else if (!signed_right(tb, answer))
			err = -EKEYREJECTED;
		if (err == -EKEYREJECTED)
			refuse(tb, FER_TB_WRONG_KEY, &answer->hello);
	}
	mutex_unlock(&tb->lock);
free:
	kfree_sensitive(packet);
	return err;
}

/* ---- the states ---- */

static void enter(struct fer_tb *tb, enum fer_tb_state state)
{
	tb->state = state;
	tb->deadline_jiffies = jiffies + msecs_to_jiffies(STEP_MS);
}

/* bye: the other end is to know, before our paths are gone */
static void reset(struct fer_tb *tb, bool bye)
{
	lockdep_assert_held(&tb->busy);
	if (bye && tb->state >= FER_TB_GREETED && !tb->xd->is_unplugged)
		ask(tb, FER_TB_BYE, 0, BYE_MS);
	fer_tb_leave(tb);
	fer_tb_take_down(tb);
	tb->state = FER_TB_IDLE;
}

static void again(struct fer_tb *tb)
{
	tb->tries = min(tb->tries + 1, MANY);
	fer_tb_kick(tb, tb->tries < MANY ? AGAIN_MS : SLOW_MS);
}

static void fail(struct fer_tb *tb, const char *what, int err)
{
	if (!tb->told && !READ_ONCE(tb->refused) && err != -ENOSPC)
		dev_warn(&tb->service->dev, "%s failed: %d; trying again\n", what, err);
	tb->told = true;
	reset(tb, true);
	again(tb);
}

static void greet(struct fer_tb *tb)
{
	int err;

	if (!fer_tb_first(tb))
		return; /* the other one does */
	mutex_lock(&tb->lock);
	offer(tb, get_random_u32() | 1);
	mutex_unlock(&tb->lock);
	err = ask(tb, FER_TB_HELLO, 0, ANSWER_MS);
	if (!err) {
		enter(tb, FER_TB_GREETED);
		fer_tb_kick(tb, 0);
		return;
	}
	if (err == -EKEYREJECTED)
		ask(tb, FER_TB_BYE, 0, BYE_MS); /* from its signature the other end sees why */
	else if (tb->tries == MANY - 1 && !tb->told && !READ_ONCE(tb->refused))
		dev_info(&tb->service->dev, "the peer does not answer yet (%d)\n", err);
	again(tb);
}

static u32 window(struct fer_tb *tb)
{
	u32 frames;

	mutex_lock(&tb->lock);
	frames = min(tb->ours.window, tb->theirs.window);
	mutex_unlock(&tb->lock);
	return frames;
}

/* Rings first, then paths: nothing may come that finds no descriptor. */
static int bring_up(struct fer_tb *tb)
{
	int err = fer_tb_join(tb);

	return err ?: fer_tb_paths(tb);
}

static void lead(struct fer_tb *tb)
{
	int err = bring_up(tb), tries = 10;
	u32 epoch;

	if (err)
		return fail(tb, "bringing rings up", err);
	epoch = fer_tb_session(tb);
	mutex_lock(&tb->lock);
	tb->epoch = epoch;
	mutex_unlock(&tb->lock);
	do { /* the other end may not have taken our answer to its HELLO yet */
		err = ask(tb, FER_TB_START, epoch, ANSWER_MS);
		if (err == -EAGAIN)
			msleep(20);
	} while (err == -EAGAIN && --tries);
	if (err)
		return fail(tb, "START", err);
	enter(tb, FER_TB_STARTED);
	fer_tb_kick(tb, 0);
}

static void begin(struct fer_tb *tb, u32 epoch)
{
	if (!fer_tb_begin(tb, epoch, window(tb)))
		return fail(tb, "joining the session", -ENODEV);
	enter(tb, FER_TB_UP);
	tb->told = false;
	WRITE_ONCE(tb->refused, false);
	tb->tries = 0;
}

static void follow(struct fer_tb *tb, u32 epoch)
{
	int err = bring_up(tb);

	if (err)
		return fail(tb, "bringing rings up", err);
	/* before READY: what comes next may be a frame */
	begin(tb, epoch);
	if (tb->state != FER_TB_UP)
		return;
	err = ask(tb, FER_TB_READY, epoch, ANSWER_MS);
	if (err)
		fail(tb, "READY", err);
}

static void step(struct fer_tb *tb)
{
	bool hello, bye, lost, leads;
	unsigned long heard;
	u32 epoch;

	lockdep_assert_held(&tb->busy);
	mutex_lock(&tb->lock);
	hello = tb->heard & BIT(FER_TB_HELLO);
	bye = tb->heard & BIT(FER_TB_BYE);
	tb->heard &= ~(BIT(FER_TB_HELLO) | BIT(FER_TB_BYE));
	mutex_unlock(&tb->lock);
	lost = xchg(&tb->is_lost, 0); /* the engine says so, without the lock */
	if ((hello || bye || lost) && tb->state != FER_TB_IDLE)
		reset(tb, lost && !hello && !bye);
	if (hello)
		enter(tb, FER_TB_GREETED);

	mutex_lock(&tb->lock);
	heard = tb->heard;
	leads = fer_tb_leads(tb);
	epoch = tb->epoch;
	mutex_unlock(&tb->lock);
	switch (tb->state) {
	case FER_TB_IDLE:
		return greet(tb);
	case FER_TB_GREETED:
		if (leads)
			return lead(tb);
		if (heard & BIT(FER_TB_START))
			return follow(tb, epoch);
		break;
	case FER_TB_STARTED:
		if (heard & BIT(FER_TB_READY))
			return begin(tb, epoch);
		break;
	case FER_TB_UP:
		return;
	}
	if (time_after(jiffies, tb->deadline_jiffies))
		fail(tb, "waiting for the peer", -ETIMEDOUT);
	else
		fer_tb_kick(tb, jiffies_to_msecs(tb->deadline_jiffies - jiffies) + 10);
}

void fer_tb_work(struct work_struct *work)
{
	struct fer_tb *tb = container_of(to_delayed_work(work), struct fer_tb, work);

	mutex_lock(&tb->busy);
	if (READ_ONCE(tb->life) == FER_TB_PRESENT)
		step(tb);
	else
		reset(tb, true);
	mutex_unlock(&tb->busy);
}
