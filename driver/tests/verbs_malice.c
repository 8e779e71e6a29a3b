// SPDX-License-Identifier: GPL-2.0
/*
 * verbs_malice DEVICE GID_INDEX SEED INJECT SECONDS: a hostile peer. Frames with right
 * checksums and wrong everything else come out of the wire (INJECT is the file in debugfs), and
 * memory that the peer was not given stays as it is.
 */
#include <fcntl.h>

#include "verbs_side.h"

#define HDR	64
#define MOST	4032

static int wire;
static unsigned long sent, refused;

static void put(uint8_t *p, uint64_t value, int bytes)
{
	while (bytes--) {
		*p++ = (uint8_t)value;
		value >>= 8;
	}
}

static uint32_t one_of(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t way = next_random() % 8;

	return way < 4 ? a : way < 6 ? b : way < 7 ? c : next_random() * 65537u;
}

struct frame {
	uint32_t op, flags, len, epoch, dqpn, sqpn, psn, rkey, total, offset;
	uint64_t addr;
};

static void inject(const struct frame *f)
{
	static uint8_t data[HDR + MOST];
	uint32_t len = f->len % (MOST + 1);

	memset(data, 0, HDR);
	memset(data + HDR, 0x66, len);
	put(data, 0x31524546, 4);
	put(data + 4, 1, 1);
	put(data + 5, f->op, 1);
	put(data + 6, f->flags & 63, 2);
	put(data + 8, len, 2);
	put(data + 10, 256, 2);
	put(data + 12, f->epoch, 4);
	put(data + 16, next_random(), 4);
	put(data + 20, next_random(), 4);
	put(data + 24, f->dqpn & 0xffffff, 4);
	put(data + 28, f->sqpn & 0xffffff, 4);
	put(data + 32, f->psn & 0xffffff, 4);
	put(data + 36, next_random(), 4);
	put(data + 40, f->addr, 8);
	put(data + 48, f->rkey, 4);
	put(data + 52, f->total, 4);
	put(data + 56, f->offset, 4);
	if (write(wire, data, HDR + len) < 0) {
		NEED(errno == EINVAL || errno == EAGAIN);
		refused++;
	} else {
		sent++;
	}
}

/* Half of the fields as they should be, so that the other half is looked at. */
static void wild(struct side *to, struct side *from, struct side *other, uint32_t psn)
{
	static const uint32_t ops[] = { 1, 3, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25 };
	struct frame f = {
		.op = next_random() % 16 ? ops[next_random() % 12] : next_random(), .flags = next_random(),
		.epoch = next_random() % 8 ? 0 : next_random() | 1,
		.dqpn = one_of(to->qp->qp_num, other->qp->qp_num, 1),
		.sqpn = one_of(from->qp->qp_num, other->qp->qp_num, 1),
		.psn = psn + (next_random() % 2 ? 0 : next_random() % 16 - 8),
		.rkey = one_of(to->mr->rkey, other->mr->rkey, 0),
		.addr = (uintptr_t)(next_random() % 2 ? to->area : other->area) + next_random() % AREA,
		.total = next_random() % 4 ? next_random() % 9000 : next_random() * 65537u,
	};

	if (next_random() % 2) { /* a frame that fits together */
		f.flags = f.flags & ~3u;
		f.offset = next_random() % 4 * MOST;
		f.total = f.total % (64 * MOST);
		if (f.op == 18 || f.op > 22 || f.op == 3)
			f.len = f.offset = 0;
		else if (f.op == 19 || f.op == 20)
			f.len = 16;
		else if (f.op == 22)
			f.len = 8;
		else if (f.offset + MOST < f.total)
			f.len = MOST;
		else
			f.len = f.total > f.offset ? f.total - f.offset : 0, f.flags |= 2;
		f.flags |= f.offset ? 0 : 1;
	} else {
		f.len = next_random();
		f.offset = next_random() % 4 ? 0 : next_random();
	}
	inject(&f);
}

int main(int argc, char **argv)
{
	struct ibv_pd *elsewhere;
	uint8_t *before;
	double end;
	int round;

	NEED(argc == 6);
	open_device(argv[1], argv[2], argv[3]);
	NEED((wire = open(argv[4], O_WRONLY)) >= 0);
	NEED((elsewhere = ibv_alloc_pd(context)) && (before = malloc(AREA)));
	end = now() + atof(argv[5]);
	for (round = 0; now() < end; round++) {
		struct side a = make(pd, IBV_QPT_RC, NULL), b = make(pd, IBV_QPT_RC, NULL);
		struct side victim = make(elsewhere, IBV_QPT_RC, NULL);
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;
		int i;

		test = "malice";
		join(&a, &b);
		scribble(victim.area, AREA);
		memcpy(before, victim.area, AREA);
		for (i = 0; i < 8; i++)
			post_recv(&b, i * 1000, 1000, i);
		NEED(!ibv_query_qp(b.qp, &attr, IBV_QP_RQ_PSN, &init));
		for (i = 0; i < 300; i++)
			wild(&b, &a, &victim, attr.rq_psn + next_random() % 4);
		same(before, victim.area, AREA, "memory of another protection domain");
		drop(&a);
		drop(&b);
		drop(&victim);

		/* and peers that keep to the rules are served as before */
		a = make(pd, IBV_QPT_RC, NULL), b = make(pd, IBV_QPT_RC, NULL);
		join(&a, &b);
		scribble(a.area, 20000);
		NEED(!post(&a, IBV_WR_RDMA_WRITE, 0, 20000, &b, 100, 1, 0));
		wait_for(&a, 1, IBV_WC_SUCCESS);
		same(a.area, b.area + 100, 20000, "data");
		drop(&a);
		drop(&b);
	}
	NEED(sent > 300);
	printf("ok malice: %d rounds, %lu frames, %lu that no link takes\n", round, sent, refused);
	return 0;
}
