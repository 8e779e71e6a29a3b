// SPDX-License-Identifier: GPL-2.0
/*
 * verbs_malice DEVICE GID_INDEX SEED INJECT SECONDS: a hostile peer. Frames with right
 * checksums and wrong everything else come out of the wire (INJECT is the file in debugfs), and
 * memory that the peer was not given stays as it is.
 */
#include <fcntl.h>

#include "verbs_side.h"

#include "../kernel/channel/wire.c"

static int wire;
static unsigned long sent, refusals;

/* The driver makes the checksum of what is injected. */
u32 fer_crc32c(const u8 *head, size_t head_len, const u8 *tail, size_t tail_len)
{
	(void)head, (void)head_len, (void)tail, (void)tail_len;
	return 0;
}

static uint32_t one_of(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t way = next_random() % 8;

	return way < 4 ? a : way < 6 ? b : way < 7 ? c : next_random() * 65537u;
}

static void inject(struct fer_hdr h)
{
	static uint8_t data[FER_FRAME];

	h.flags &= FER_FLAGS;
	h.window = 256;
	h.seq = next_random();
	h.ack = next_random();
	h.imm = next_random();
	h.dqpn &= FER_QPN_MASK;
	h.sqpn &= FER_QPN_MASK;
	h.psn &= FER_PSN_MASK;
	memset(data + FER_HDR, 0x66, h.len);
	fer_hdr_seal(data, &h);
	if (write(wire, data, FER_HDR + h.len) < 0) {
		NEED(errno == EINVAL || errno == EAGAIN);
		refusals++;
	} else {
		sent++;
	}
}

/* Half of the fields as they should be, so that the other half is looked at. */
static void wild(struct side *to, struct side *from, struct side *other, uint32_t psn)
{
	static const u8 ops[] = {
		FER_OP_CHANNEL_ACK, FER_OP_SKIP, FER_OP_SEND, FER_OP_WRITE, FER_OP_READ,
		FER_OP_CMP_SWAP, FER_OP_FETCH_ADD, FER_OP_READ_RESP, FER_OP_ATOMIC_RESP,
		FER_OP_ACK, FER_OP_NAK, FER_OP_DGRAM,
	};
	struct fer_hdr h = {
		.op = next_random() % 16 ? ops[next_random() % sizeof(ops)] : next_random(),
		.flags = next_random(),
		.epoch = next_random() % 8 ? 0 : next_random() | 1,
		.dqpn = one_of(to->qp->qp_num, other->qp->qp_num, 1),
		.sqpn = one_of(from->qp->qp_num, other->qp->qp_num, 1),
		.psn = psn + (next_random() % 2 ? 0 : next_random() % 16 - 8),
		.rkey = one_of(to->mr->rkey, other->mr->rkey, 0),
		.addr = (uintptr_t)(next_random() % 2 ? to->area : other->area) + next_random() % AREA,
		.total = next_random() % 4 ? next_random() % 9000 : next_random() * 65537u,
	};

	if (next_random() % 2) { /* a frame that fits together */
		h.flags &= ~(FER_FIRST | FER_LAST);
		h.offset = next_random() % 4 * FER_PAYLOAD;
		h.total %= 64 * FER_PAYLOAD;
		if (h.op == FER_OP_READ || h.op > FER_OP_ATOMIC_RESP || h.op == FER_OP_SKIP)
			h.offset = 0;
		else if (h.op == FER_OP_CMP_SWAP || h.op == FER_OP_FETCH_ADD)
			h.len = 16;
		else if (h.op == FER_OP_ATOMIC_RESP)
			h.len = 8;
		else if (h.offset + FER_PAYLOAD < h.total)
			h.len = FER_PAYLOAD;
		else
			h.len = h.total > h.offset ? h.total - h.offset : 0, h.flags |= FER_LAST;
		h.flags |= h.offset ? 0 : FER_FIRST;
	} else {
		h.len = next_random() % (FER_PAYLOAD + 1);
		h.offset = next_random() % 4 ? 0 : next_random();
	}
	inject(h);
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
		struct side a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
		struct side victim = make(elsewhere, IBV_QPT_RC);
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
		a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
		join(&a, &b);
		scribble(a.area, 20000);
		NEED(!post(&a, IBV_WR_RDMA_WRITE, 0, 20000, &b, 100, 1, 0));
		wait_for(&a, 1, IBV_WC_SUCCESS);
		same(a.area, b.area + 100, 20000, "data");
		drop(&a);
		drop(&b);
	}
	NEED(sent > 300);
	printf("ok malice: %d rounds, %lu frames, %lu not taken\n", round, sent, refusals);
	return 0;
}
