/* SPDX-License-Identifier: GPL-2.0 */
/* A rail over a USB4 cable: its service, the handshake that brings it up, its rings. */
#ifndef FER_TB_H
#define FER_TB_H

#include <linux/thunderbolt.h>
#include <linux/workqueue.h>

#include "ferrule_rdma.h"

#define FER_TB_VERSION	1
#define FER_TB_RING	512	/* descriptors; a window of frames and what is outside of it */
#define FER_TB_PDF_START	5	/* they must differ, or the controller joins frames */
#define FER_TB_PDF_END		6
#define FER_MAC		32

enum fer_tb_op {
	FER_TB_HELLO = 1,	/* here I am, and what I can; the answer says the same */
	FER_TB_START,		/* of the leader: my rings run; begin this session */
	FER_TB_READY,		/* of the other one: mine do, too */
	FER_TB_BYE,		/* my paths go down now */
	FER_TB_ANSWER = 0x80,	/* added in answers; the handler must not take these */
};

enum fer_tb_status {
	FER_TB_OK,
	FER_TB_WRONG_VERSION,
	FER_TB_WRONG_KEY,
	FER_TB_NOT_NOW,
};

#define FER_TB_CAP_E2E	1
#define FER_TB_CAP_KEY	2

/* Offer of each end, in words that the control channel carries in either order of bytes. */
struct fer_hello {
	u32 version;
	u32 caps;
	u32 window;
	u32 hop;		/* HopID that the sender's frames will have on the cable */
	u32 attempt;		/* random: a HELLO with another one is a new beginning */
	u8 host[FER_HOST_ID];	/* random for each loading of the module */
	u8 nonce[16];
};

/* Both are read as they come; the control channel has words of 32 bits. */
static_assert(sizeof(struct fer_hello) == 52);

struct fer_packet {
	u32 route_hi, route_lo, length_sn;
	uuid_t protocol;
	u32 op;
	uuid_t from, to;	/* of hosts; the handler is not told where a packet came from */
	u32 status;
	u32 attempt;		/* which HELLO this is about */
	u32 epoch;
	struct fer_hello hello;
	u8 mac[FER_MAC];
};

static_assert(offsetof(struct fer_packet, protocol) == 12); /* behind the core's own header */
static_assert(offsetof(struct fer_packet, hello) == 76);
static_assert(sizeof(struct fer_packet) == 160);

enum fer_tb_state {
	FER_TB_IDLE,		/* nothing is known of the other end */
	FER_TB_GREETED,		/* both HELLOs are known */
	FER_TB_STARTED,		/* leader: rings run, waiting for READY */
	FER_TB_UP,
};

enum fer_tb_life {
	FER_TB_PRESENT,
	FER_TB_ASLEEP,		/* the machine is: the device stays, with its port down */
	FER_TB_GONE,		/* the cable, or this driver */
};

struct fer_tb_frame {
	struct ring_frame ring;
	struct fer_frame frame;
	bool queued;		/* of what is sent: it is in the ring */
};

struct fer_tb {
	struct fer_rail rail;
	struct list_head node;		/* rails_lock */
	struct tb_service *service;
	struct tb_xdomain *xd;
	struct kref ref;
	struct delayed_work work;
	struct mutex busy;		/* of the work; all below but what lock is for */
	enum fer_tb_state state;
	unsigned long deadline_jiffies;	/* when the state is given up */
	unsigned int tries;
	bool told;			/* the log has said why it does not come up */
	int out_hop, in_hop;
	u8 peer[FER_HOST_ID];		/* whose device it joined last; 0: none yet */

	struct mutex lock;		/* what the handler and the work share */
	enum fer_tb_life life;		/* also read without it */
	bool refused;			/* the log has said why, */
	u8 refused_host[FER_HOST_ID];	/* of this loading of the peer */
	int is_lost;			/* by xchg() */
	unsigned long heard;		/* BIT(fer_tb_op) of requests not yet taken */
	u32 epoch;
	struct fer_hello ours, theirs;

	/* rings.c and tb_wire.c */
	struct tb_ring *tx, *rx;
	bool running, paths;
	bool wakes;			/* an interrupt is to come with the next frame */
	bool tx_masked;			/* none comes of what was sent */
	struct fer_tb_frame *tx_frames, *rx_frames;
	u64 crc_errors, overruns;
};

static inline struct fer_tb *to_fer_tb(struct fer_rail *rail)
{
	return container_of(rail, struct fer_tb, rail);
}

/* One end is to do what only one of them may. */
static inline bool fer_tb_first(const struct fer_tb *tb)
{
	return memcmp(tb->xd->local_uuid, tb->xd->remote_uuid, sizeof(uuid_t)) > 0;
}

/* Of the two hosts, whichever the cable: says when a session begins. */
static inline bool fer_tb_leads(const struct fer_tb *tb)
{
	int order = memcmp(tb->ours.host, tb->theirs.host, FER_HOST_ID);

	return order ? order > 0 : fer_tb_first(tb);
}

/* service.c */
extern const uuid_t fer_protocol;
extern u8 fer_host_id[FER_HOST_ID];
void fer_tb_kick(struct fer_tb *tb, unsigned int ms);

/* peer.c */
int fer_tb_join(struct fer_tb *tb);
u32 fer_tb_session(struct fer_tb *tb);
bool fer_tb_begin(struct fer_tb *tb, u32 epoch, u32 window);
void fer_tb_leave(struct fer_tb *tb);

/* handshake.c */
void fer_tb_work(struct work_struct *work);
void fer_tb_hear(struct fer_tb *tb, const struct fer_packet *packet);

/* auth.c */
bool fer_have_key(void);
void fer_mac(u8 mac[FER_MAC], const struct fer_packet *packet, const struct fer_hello *first,
	     const struct fer_hello *second);
bool fer_mac_right(const struct fer_packet *packet, const struct fer_hello *first,
		   const struct fer_hello *second);

/* tb_wire.c */
extern const struct fer_wire_ops fer_tb_ops;
void fer_tb_give(struct fer_tb *tb, struct fer_tb_frame *to);
void fer_tb_frames_came(void *data);
void fer_tb_frames_left(void *data);

/* rings.c */
int fer_tb_rings(struct fer_tb *tb);
int fer_tb_paths(struct fer_tb *tb);
void fer_tb_stop(struct fer_rail *rail);
void fer_tb_take_down(struct fer_tb *tb);
u32 fer_tb_caps(void);

#endif
