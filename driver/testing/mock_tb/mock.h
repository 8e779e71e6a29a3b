/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A stand-in for thunderbolt.ko: the API of include/linux/thunderbolt.h for service drivers, with
 * no hardware under it. It makes two hosts in one kernel (domains 0 and 1), joined by a virtual cable.
 */
#ifndef MOCK_TB_H
#define MOCK_TB_H

#include <linux/completion.h>
#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/thunderbolt.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#define SINCE(major, minor) (LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))

#if SINCE(6, 9)
#define MOCK_CONST const
#else
#define MOCK_CONST
#endif

#define MOCK_HOPS 12
#define MOCK_MIN_HOPID 8
#define MOCK_MAX_HOPID 19
#define MOCK_PATHS 16
#define MOCK_FRAME 4096

struct mock_path {
	bool on;
	int tx_path, tx_ring, rx_path, rx_ring;
};

/* One of the two hosts. */
struct mock_side {
	struct tb tb;
	struct tb_nhi nhi;
	struct tb_xdomain *xd;
	struct mock_side *peer;
	uuid_t uuid;
	int index;
	struct list_head services;	/* mock_cable_lock */

	struct ida tx_hops, rx_hops;
	struct list_head rings;		/* mock_wire_lock, as what follows */
	struct mock_path paths[MOCK_PATHS];
	struct list_head wire;		/* frames on their way from this side */
	unsigned int on_wire;
	u64 wire_free;			/* ns: when the last frame's sending ends */
	struct work_struct pump;
	struct hrtimer timer;

	struct list_head control;	/* packets to this side, mock_control_lock */
	struct work_struct control_work;
	struct mutex request_lock;	/* one request at a time */
	spinlock_t response_lock;	/* what follows */
	struct completion response_done;
	void *response;
	size_t response_size;
};

struct mock_ring {
	struct tb_ring ring;
	struct mock_side *side;
	struct list_head node;
	struct list_head filled;	/* frames that were not polled yet, ring.lock */
	struct work_struct rx_work;
	bool polling;			/* ring.lock */
};

struct mock_service {
	struct tb_service service;
	struct list_head node;
	char key[TB_PROPERTY_KEY_SIZE + 1];
};

extern struct mock_side *mock_sides[2];
extern struct workqueue_struct *mock_wq;
extern struct mutex mock_wire_lock;	/* rings, paths, wires */
extern struct mutex mock_cable_lock;	/* services, directories, whether plugged in */
extern bool mock_plugged;		/* mock_cable_lock */
extern MOCK_CONST struct bus_type mock_bus_type;
extern MOCK_CONST struct device_type tb_service_type;
extern MOCK_CONST struct device_type tb_xdomain_type;

static inline struct mock_side *mock_xd_side(struct tb_xdomain *xd)
{
	return container_of(xd->tb, struct mock_side, tb);
}

static inline size_t mock_frame_size(const struct ring_frame *frame)
{
	return frame->size ? frame->size : MOCK_FRAME;
}

static inline void mock_kick(struct mock_side *side)
{
	queue_work(mock_wq, &side->pump);
}

/* service.c */
void mock_services_add(struct mock_side *side);
void mock_services_remove(struct mock_side *side, const char *key);

/* control.c */
void mock_control_init(struct mock_side *side);

/* ring.c */
void mock_ring_notify(struct mock_ring *ring);
void mock_ring_done(struct mock_ring *ring, struct ring_frame *frame);

/* wire.c */
void mock_wire_init(struct mock_side *side);
void mock_wire_exit(struct mock_side *side);
void mock_wire_clear(struct mock_side *side);
bool mock_is_mute(const struct mock_side *side);

#endif
