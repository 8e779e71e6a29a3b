/* SPDX-License-Identifier: GPL-2.0 */
/* Common parts of the tests in this directory: two queue pairs with memory, joined; waits with deadlines. */
#ifndef VERBS_SIDE_H
#define VERBS_SIDE_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AREA	(2 << 20)	/* bytes that each side has registered */
#define DEPTH	16
#define WAIT	20.0		/* seconds for any completion */
#define ACCESS	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		 IBV_ACCESS_REMOTE_ATOMIC)

struct side {
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *area;
};

static struct ibv_context *context;
static struct ibv_pd *pd, *far;	/* of this end, and of the other one; one and the same on one device */
static int gid_index;
static unsigned int seed;
static const char *test = "start";

__attribute__((format(printf, 1, 2), noreturn)) static inline void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "FAILED %s: ", test);
	vfprintf(stderr, format, args);
	fprintf(stderr, " (errno %d)\n", errno);
	exit(1);
}

#define NEED(x) do { if (!(x)) fail("line %d: %s", __LINE__, #x); } while (0)

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static inline uint32_t next_random(void)
{
	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

static inline void scribble(uint8_t *p, size_t n)
{
	while (n--)
		*p++ = next_random();
}

/* ---- making and joining ---- */

static char refused[80];	/* what was last not to be had */

/* 0: something is not to be had, as of a device that is going. drop() takes what there is. */
static inline int try_make(struct ibv_pd *in, enum ibv_qp_type type, uint32_t depth, struct side *s)
{
	struct ibv_qp_init_attr init = {
		.qp_type = type,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 3,
			 .max_recv_sge = 3, .max_inline_data = 64 },
	};

	*s = (struct side){ .area = calloc(1, AREA), .channel = ibv_create_comp_channel(in->context) };
	NEED(s->area);
	s->cq = s->channel ? ibv_create_cq(in->context, 4 * depth, NULL, s->channel, 0) : NULL;
	s->mr = ibv_reg_mr(in, s->area, AREA, ACCESS);
	init.send_cq = init.recv_cq = s->cq;
	s->qp = s->cq ? ibv_create_qp(in, &init) : NULL;
	if (!s->mr || !s->qp)
		snprintf(refused, sizeof(refused), "an object: %s", strerror(errno));
	return s->mr && s->qp;
}

static inline struct side make_deep(struct ibv_pd *in, enum ibv_qp_type type, uint32_t depth)
{
	struct side s;

	NEED(try_make(in, type, depth, &s));
	return s;
}

static inline struct side make(struct ibv_pd *in, enum ibv_qp_type type)
{
	return make_deep(in, type, 64);
}

static inline void drop(struct side *s)
{
	if (s->qp)
		NEED(!ibv_destroy_qp(s->qp));
	if (s->cq)
		NEED(!ibv_destroy_cq(s->cq));
	if (s->channel)
		NEED(!ibv_destroy_comp_channel(s->channel));
	if (s->mr)
		NEED(!ibv_dereg_mr(s->mr));
	free(s->area);
}

struct joining {
	int access, timeout, retry, rnr_retry;
};

static inline int try_modify(struct side *s, struct ibv_qp_attr *attr, int mask, const char *what)
{
	int err = ibv_modify_qp(s->qp, attr, mask | IBV_QP_STATE);

	if (err)
		snprintf(refused, sizeof(refused), "%s: %s", what, strerror(err));
	return !err;
}

/* This end, from the beginning until it may send. */
static inline int try_join(struct side *s, struct side *peer, uint32_t psn, uint32_t peer_psn,
			   struct joining how)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = how.access };
	int rc = s->qp->qp_type == IBV_QPT_RC;

	if (!try_modify(s, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"))
		return 0;
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num,
		.rq_psn = peer_psn, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .sgid_index = gid_index, .hop_limit = 1 } },
	};
	if (ibv_query_gid(peer->qp->context, 1, gid_index, &attr.ah_attr.grh.dgid)) {
		snprintf(refused, sizeof(refused), "the peer's GID: %s", strerror(errno));
		return 0;
	}
	if (!try_modify(s, &attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			(rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0), "RTR"))
		return 0;
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = how.timeout,
		.retry_cnt = how.retry, .rnr_retry = how.rnr_retry, .max_rd_atomic = 4,
	};
	return try_modify(s, &attr, IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0), "RTS");
}

static inline void join_how(struct side *a, struct side *b, struct joining how)
{
	/* close to the end of the numbers, so that they wrap */
	uint32_t psn_a = 0xfffff0 + next_random() % 16, psn_b = next_random() & 0xffffff;

	if (!try_join(a, b, psn_a, psn_b, how) || !try_join(b, a, psn_b, psn_a, how))
		fail("%s", refused);
}

static const struct joining usual = { ACCESS, 16, 7, 7 };

static inline void join(struct side *a, struct side *b)
{
	join_how(a, b, usual);
}

/* ---- posting and waiting ---- */

/* Three pieces of an area, so that lists are used. */
static inline int pieces(struct side *s, uint32_t at, uint32_t length, struct ibv_sge *sge)
{
	uint32_t first = length / 3, second = length / 5;
	uint64_t addr = (uintptr_t)s->area + at;

	sge[0] = (struct ibv_sge){ addr, first, s->mr->lkey };
	sge[1] = (struct ibv_sge){ addr + first, second, s->mr->lkey };
	sge[2] = (struct ibv_sge){ addr + first + second, length - first - second, s->mr->lkey };
	return 3;
}

static inline int post(struct side *s, enum ibv_wr_opcode op, uint32_t at, uint32_t length,
		struct side *peer, uint32_t peer_at, uint64_t id, int flags)
{
	struct ibv_sge sge[3];
	struct ibv_send_wr *bad, wr = {
		.wr_id = id, .sg_list = sge, .opcode = op, .send_flags = flags | IBV_SEND_SIGNALED,
		.imm_data = htobe32(0x12340000 + (uint32_t)id),
		.num_sge = pieces(s, at, length, sge),
	};

	if (peer) {
		wr.wr.rdma.remote_addr = (uintptr_t)peer->area + peer_at;
		wr.wr.rdma.rkey = peer->mr->rkey;
	}
	return ibv_post_send(s->qp, &wr, &bad);
}

static inline void post_recv(struct side *s, uint32_t at, uint32_t length, uint64_t id)
{
	struct ibv_sge sge[3];
	struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = sge,
					.num_sge = pieces(s, at, length, sge) };

	NEED(!ibv_post_recv(s->qp, &wr, &bad));
}

static inline struct ibv_wc wait_any(struct side *s)
{
	double end = now() + WAIT;
	struct ibv_wc wc;

	for (;;) {
		int got = ibv_poll_cq(s->cq, 1, &wc);

		if (got == 1)
			return wc;
		NEED(got == 0);
		if (now() > end)
			fail("no completion in %g s", WAIT);
	}
}

static inline struct ibv_wc wait_for(struct side *s, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = wait_any(s);

	if (wc.status != status || wc.wr_id != id)
		fail("completion of %llu is '%s' (%#x), not '%s' of %llu",
		     (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status), wc.vendor_err,
		     ibv_wc_status_str(status), (unsigned long long)id);
	NEED(wc.qp_num == s->qp->qp_num);
	return wc;
}

static inline void same(const uint8_t *a, const uint8_t *b, size_t n, const char *what)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (a[i] != b[i])
			fail("%s: byte %zu of %zu is %02x, not %02x", what, i, n, b[i], a[i]);
}

static inline struct ibv_context *try_open(const char *name)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *opened = NULL;
	int i;

	for (i = 0; devices && devices[i] && !opened; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			opened = ibv_open_device(devices[i]);
	if (devices)
		ibv_free_device_list(devices);
	return opened;
}

/*
 * Open the device, and a protection domain in it; or both ends of a cable, as NAME,NAME.
 */
static inline void open_device(const char *names, const char *gid, const char *from)
{
	char *name = strdup(names), *other = strchr(name, ',');

	if (other)
		*other++ = 0;
	gid_index = atoi(gid);
	seed = strtoul(from, NULL, 0);
	NEED(context = try_open(name));
	NEED(pd = ibv_alloc_pd(context));
	far = pd;
	if (other) {
		struct ibv_context *there = try_open(other);

		NEED(there && (far = ibv_alloc_pd(there)));
	}
	free(name);
}

#endif
