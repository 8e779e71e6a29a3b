/* SPDX-License-Identifier: GPL-2.0 */
/* The channel to one peer, its rails, and the wire under a rail. See docs/driver.md. */
#ifndef FER_CHANNEL_H
#define FER_CHANNEL_H

#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "channel/wire.h"

#define FER_WINDOW	256		/* frames that may be under way; a power of two */
#define FER_SLOT(seq)	((seq) & (FER_WINDOW - 1))
#define FER_FRAMES	(FER_WINDOW + 16)	/* frames to fill: also for acknowledgements */
#define FER_MAX_RAILS	4

struct fer_dev;
struct fer_channel;
struct fer_rail;
struct fer_qp;

/* A buffer for one frame. It belongs to its pool, the channel or the wire, one at a time. */
struct fer_frame {
	struct list_head node;
	u8 *data;
	u32 size;		/* bytes of the frame in data */
	u16 index;		/* of the channel's own frames: place in channel->frames */
	u16 busy;		/* of the channel's own: rails that still read it */
	u64 due_ns;		/* loopback: when it arrives */
	struct fer_rail *rail;	/* of what came: whose frame it is */
};

/*
 * All calls come from the holder of channel->engine. Received frames are handed to
 * fer_channel_rx(), which takes a frame for good and gives it back by put_rx.
 */
struct fer_wire_ops {
	const char *name;
	/*
	 * Send the frame. A wire that reads it later adds one to frame->busy, and takes it away
	 * in poll or when the rail leaves; until then the frame stays as it is.
	 */
	void (*tx)(struct fer_rail *rail, struct fer_frame *frame);
	/* Hand over what has come, at most budget frames. Gives how many. */
	int (*poll)(struct fer_rail *rail, int budget);
	void (*put_rx)(struct fer_rail *rail, struct fer_frame *frame);
	/* When poll has something again, if that is known: KTIME_MAX if not. */
	u64 (*next_due)(struct fer_rail *rail);
	/* The thread is about to sleep: the next frame is to wake it. True: one is here. */
	bool (*arm)(struct fer_rail *rail);
	/* The channel has given the rail up: bring it up anew. */
	void (*lost)(struct fer_rail *rail);
	/* The rail leaves: let go of all that is the channel's. Not under the engine. */
	void (*leave)(struct fer_rail *rail);
	/* It has left, and is not looked at any more. */
	void (*left)(struct fer_rail *rail);
};

/* One wire to the peer. Its owner embeds it; under channel->engine while it is joined. */
struct fer_rail {
	struct fer_channel *channel;	/* fer_topology: the one it is joined to */
	const struct fer_wire_ops *ops;
	int index;			/* in channel->rails */
	bool up;			/* frames may go this way */
	u32 unacked;			/* frames whose last way was this one */
	u32 reading;			/* frames that its wire still reads */
	u32 sent_order, acked_order;	/* number of the last frame sent, and known to be there */
	u64 last_tx_ns;
	u64 last_tick_ns;		/* when its silence was last counted */
	u32 silent;
	u64 moved_ns;			/* when one of its frames was last known to be there */
	u64 doubted_until_ns;		/* no frame goes here if another way is open */
	u64 tx_frames, tx_bytes, rx_frames, rx_bytes, resent, losses;
};

/* ---- counters, shown in debugfs and by `rdma statistic` ---- */

#define FER_STATS(X) \
	X(TX_FRAMES, "tx_frames") \
	X(RX_FRAMES, "rx_frames") \
	X(TX_BYTES, "tx_bytes") \
	X(RX_BYTES, "rx_bytes") \
	X(RESENT, "resent") \
	X(RESENT_LATE, "resent_late") \
	X(RESENT_MISSING, "resent_missing") \
	X(RESENT_REROUTED, "resent_rerouted") \
	X(SKIPPED, "skipped") \
	X(RX_BAD_CRC, "rx_bad_crc") \
	X(RX_BAD_FRAME, "rx_bad_frame") \
	X(RX_STALE_EPOCH, "rx_stale_epoch") \
	X(RX_DUPLICATE, "rx_duplicate") \
	X(RX_OUT_OF_ORDER, "rx_out_of_order") \
	X(RX_BEYOND_WINDOW, "rx_beyond_window") \
	X(NO_QP, "rx_no_qp") \
	X(WRONG_PEER, "rx_wrong_peer") \
	X(RNR_NAK, "nak_not_ready") \
	X(SEQ_NAK, "nak_sequence") \
	X(ACCESS_NAK, "nak_access") \
	X(INVALID_NAK, "nak_invalid") \
	X(QP_TIMEOUT, "qp_timeouts") \
	X(UC_DROPPED, "unreliable_dropped")

enum fer_stat {
#define FER_ID(id, text) FER_STAT_##id,
	FER_STATS(FER_ID)
#undef FER_ID
	FER_STAT_COUNT
};

/* Reasons to send a frame, or a skip in its place, again; each is counted as RESENT_... above. */
enum fer_again {
	FER_AGAIN_LATE,		/* nothing of it was heard for too long */
	FER_AGAIN_MISSING,	/* one that went the same way after it is there */
	FER_AGAIN_REROUTED,	/* its way is down, or stands still while others move */
};

/* ---- the channel: frames to one peer, reliably and in order, over up to four cables ---- */

struct fer_txslot {
	struct fer_frame *frame;	/* NULL: empty */
	struct fer_hdr hdr;
	struct fer_rail *rail;		/* its last way; NULL: none was open */
	u32 order;			/* there */
	u32 tries;
	u64 sent_ns;		/* last time */
};

struct fer_channel {
	struct fer_dev *dev;
	struct task_struct *thread;
	wait_queue_head_t wait;
	atomic_t kicked;
	bool up;				/* a session is; also read without the engine */

	struct mutex engine;			/* all of the following, and the wires */
	struct fer_rail *rails[FER_MAX_RAILS];
	u64 sleep_until_ns;			/* of the thread; 0: it is awake */
	u32 epoch;
	u32 offered;				/* epoch of a session that is about to begin */
	u32 last_epoch;				/* of the session before: it never begins again */
	u32 window;				/* frames that may be under way */
	u32 tx_next, tx_una, rx_next;
	struct fer_txslot tx[FER_WINDOW];
	struct fer_frame *held[FER_WINDOW];	/* came early, by sequence */
	u32 held_count;
	struct fer_frame frames[FER_FRAMES];
	struct list_head free;			/* to fill; the busy ones are near the end */
	u32 ack_turn;
	u32 rx_unacked;
	bool ack_now;
	u64 ack_due_ns;			/* when what is unacked must be acked */
	u64 progress_ns;		/* when the oldest unacked frame last changed */
	u64 rto_ns;
	u64 rtt_ns, rtt_var_ns;		/* of acknowledgements */
	u64 next_timer_ns;		/* of queue pairs */
	u64 last_busy_ns;

	spinlock_t qp_lock;			/* active, timed and their flags */
	struct list_head active;
	struct list_head timed;

	u64 stats[FER_STAT_COUNT];		/* read anywhere */
};

/* channel.c: life, and who does the work */
struct fer_channel *fer_channel_create(struct fer_dev *dev, const char *name);
void fer_channel_destroy(struct fer_channel *channel);
void fer_channel_kick(struct fer_channel *channel);
void fer_channel_drive(struct fer_channel *channel);

/* channel_tx.c: what is sent, until it is acknowledged */
/* A frame to fill behind FER_HDR, or NULL while the window is full. */
struct fer_frame *fer_channel_get(struct fer_channel *channel);
void fer_channel_put(struct fer_channel *channel, struct fer_frame *frame);
void fer_channel_send(struct fer_channel *channel, struct fer_frame *frame, struct fer_hdr *hdr);
void fer_channel_acked(struct fer_channel *channel, u32 ack, u64 now);
void fer_channel_missing(struct fer_channel *channel, u32 ack, const u8 *bits, u64 now);
u64 fer_channel_late_at(const struct fer_channel *channel);
void fer_channel_late(struct fer_channel *channel, u64 now);
void fer_channel_reroute(struct fer_channel *channel, struct fer_rail *rail, u64 now);
void fer_channel_ack(struct fer_channel *channel, struct fer_rail *rail);

/* channel_rx.c */
void fer_channel_rx(struct fer_channel *channel, struct fer_frame *frame);
void fer_channel_unhold(struct fer_channel *channel, struct fer_rail *rail);

/* session.c: rails and sessions */
extern struct mutex fer_topology;	/* which rails are joined to which channel */
int fer_rail_join(struct fer_channel *channel, struct fer_rail *rail);
void fer_rail_leave(struct fer_rail *rail);
bool fer_rail_up(struct fer_rail *rail, u32 epoch, u32 window);
void fer_rail_down(struct fer_rail *rail, const char *why);
void fer_rails_check(struct fer_channel *channel, u64 now);
void fer_session_begin(struct fer_channel *channel, u32 epoch, u32 window);
u32 fer_session_offer(struct fer_channel *channel, u32 fresh);
void fer_session_end(struct fer_channel *channel, const char *why);
u64 fer_dead_after_ns(void);

static inline void fer_count_many(struct fer_channel *channel, enum fer_stat stat, u32 many)
{
	WRITE_ONCE(channel->stats[stat], channel->stats[stat] + many);
}

static inline void fer_count(struct fer_channel *channel, enum fer_stat stat)
{
	fer_count_many(channel, stat, 1);
}

/* The rails of a channel, under its engine. */
#define fer_each_rail(channel, rail, i) \
	for ((i) = 0; (i) < FER_MAX_RAILS; (i)++) \
		if (((rail) = (channel)->rails[i]))

#endif
