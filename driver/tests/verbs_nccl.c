// SPDX-License-Identifier: GPL-2.0
/*
 * verbs_nccl DEVICE[,DEVICE] GID_INDEX SEED ROUNDS: messages as NCCL sends them over RDMA. Who is to
 * receive posts a receive without memory on each queue pair and writes into the sender's table
 * where the message may go; the sender watches that table, cuts the message into one piece for
 * each queue pair, and posts WRITE and an empty WRITE_WITH_IMM as a chain. Both ways at a time,
 * on queues of 512; every byte is compared.
 */
#include "verbs_side.h"

#define QPS	4
#define QUEUE	512
#define MOST	(QUEUE / 2)	/* messages under way: each is two requests on each queue pair */
#define GUARD	64		/* bytes behind a message, which stay as they are */

/* Entry that the receiver writes into the sender's table. The last field says that all are there. */
struct ticket {
	uint64_t addr;
	uint32_t rkey, room;
	uint64_t unused[5];
	uint64_t turn;
};

/* One way: the first side's data and tickets are in the areas of its first two queue pairs. */
struct way {
	struct side tx[QPS], rx[QPS];
	uint32_t key;			/* makes the data differ */
	uint32_t asked, sent, left, came;	/* messages: ticket written, posted, done, checked */
	uint8_t left_on[MOST], came_on[MOST];	/* queue pairs that are done with it */
};

static struct way ways[2];
static uint32_t under_way, slot, messages;	/* of this round */
static double progress;

static uint32_t length_of(const struct way *w, uint32_t message)
{
	static const uint32_t edges[] = { 0, 1, 128, 4032, 4033, 4 * 4032, 4 * 4032 + 1 };
	uint32_t x = (message * 2654435761u) ^ w->key;

	x ^= x >> 15;
	if (!(x % 4) && edges[x / 4 % 7] <= slot - GUARD)
		return edges[x / 4 % 7];
	return x % (slot - GUARD + 1);
}

static void fill(const struct way *w, uint32_t message, uint8_t *to, uint32_t n)
{
	uint32_t x = (message + 1) * 2246822519u ^ w->key, i;

	for (i = 0; i < n; i++) {
		to[i] = x >> 24;
		x = x * 1664525u + 1013904223u;
	}
}

static struct ticket *table(struct side *s)
{
	return (struct ticket *)s[1].area;
}

/* ---- the receiver ---- */

static void ask(struct way *w)
{
	for (; w->asked < messages && w->asked - w->came < under_way; w->asked++) {
		uint32_t place = w->asked % under_way, i;
		struct ticket *t = table(w->rx) + place;
		uint8_t *to = w->rx[0].area + (size_t)place * slot;
		struct ibv_sge sge = { (uintptr_t)t, sizeof(*t), w->rx[1].mr->lkey };
		struct ibv_recv_wr *bad_recv, recv = { .wr_id = w->asked };
		struct ibv_send_wr *bad, wr = {
			.wr_id = ~0ull, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
			.send_flags = IBV_SEND_INLINE | (place ? 0 : IBV_SEND_SIGNALED),
			.wr.rdma = { (uintptr_t)(table(w->tx) + place), w->tx[1].mr->rkey },
		};

		memset(to, 0xee, slot);
		for (i = 0; i < QPS; i++)
			NEED(!ibv_post_recv(w->rx[i].qp, &recv, &bad_recv));
		*t = (struct ticket){ .addr = (uintptr_t)to, .rkey = w->rx[0].mr->rkey,
				      .room = slot, .turn = w->asked + 1 };
		NEED(!ibv_post_send(w->rx[w->asked % QPS].qp, &wr, &bad));
	}
}

static void check(struct way *w, uint32_t message)
{
	uint8_t *data = w->rx[0].area + (size_t)(message % under_way) * slot;
	uint32_t n = length_of(w, message), i;
	static uint8_t wanted[AREA];

	fill(w, message, wanted, n);
	same(wanted, data, n, "message");
	for (i = n; i < n + GUARD; i++)
		NEED(data[i] == 0xee);
}

static void receive(struct way *w, struct side *s)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(s->cq, 1, &wc)) == 1) {
		if (wc.status)
			fail("receiver: %s", ibv_wc_status_str(wc.status));
		progress = now();
		if (wc.wr_id == ~0ull)
			continue; /* of a ticket */
		NEED(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & IBV_WC_WITH_IMM);
		NEED(wc.wr_id >= w->came && wc.wr_id < w->asked && !wc.byte_len);
		NEED(wc.imm_data == htobe32(length_of(w, wc.wr_id)));
		w->came_on[wc.wr_id % under_way]++;
	}
	NEED(!got);
	while (w->came < w->asked && w->came_on[w->came % under_way] == QPS) {
		w->came_on[w->came % under_way] = 0;
		check(w, w->came++);
	}
}

/* ---- the sender ---- */

static void send_on(struct way *w, uint32_t i, const struct ticket *t, uint32_t n)
{
	uint32_t piece = ((n + QPS - 1) / QPS + 127) / 128 * 128;
	uint32_t at = i * piece < n ? i * piece : n, part = n - at < piece ? n - at : piece;
	struct ibv_sge sge = {
		(uintptr_t)w->tx[0].area + (size_t)(w->sent % under_way) * slot + at, part,
		w->tx[0].mr->lkey,
	};
	struct ibv_send_wr *bad, end = {
		.wr_id = w->sent, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(n),
		.send_flags = IBV_SEND_SIGNALED,
	}, data = {
		.wr_id = w->sent, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.next = &end, .wr.rdma = { t->addr + at, t->rkey },
	};

	NEED(!ibv_post_send(w->tx[i].qp, part ? &data : &end, &bad));
}

static void answer(struct way *w)
{
	for (; w->sent < w->asked && w->sent - w->left < under_way; w->sent++) {
		struct ticket *t = table(w->tx) + w->sent % under_way;
		uint32_t n = length_of(w, w->sent), i;

		if (*(volatile uint64_t *)&t->turn != w->sent + 1)
			return;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		NEED(t->room == slot && n <= t->room);
		fill(w, w->sent, w->tx[0].area + (size_t)(w->sent % under_way) * slot, n);
		for (i = 0; i < QPS; i++)
			send_on(w, i, t, n);
	}
}

static void sent(struct way *w, struct side *s)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(s->cq, 1, &wc)) == 1) {
		if (wc.status)
			fail("sender: %s", ibv_wc_status_str(wc.status));
		NEED(wc.opcode == IBV_WC_RDMA_WRITE && wc.wr_id >= w->left && wc.wr_id < w->sent);
		w->left_on[wc.wr_id % under_way]++;
		progress = now();
	}
	NEED(!got);
	while (w->left < w->sent && w->left_on[w->left % under_way] == QPS)
		w->left_on[w->left++ % under_way] = 0;
}

/* ---- both ---- */

static int is_done(void)
{
	return ways[0].came == messages && ways[0].left == messages &&
	       ways[1].came == messages && ways[1].left == messages;
}

/* So many messages each way, so many at a time. */
static void exchange(uint32_t count, uint32_t at_a_time)
{
	int i, k;

	messages = count;
	under_way = at_a_time;
	slot = AREA / at_a_time;
	progress = now();
	for (i = 0; i < 2; i++) {
		struct way *w = &ways[i];

		memset(w->tx[1].area, 0, AREA);
		w->key = next_random();
		w->asked = w->sent = w->left = w->came = 0;
	}
	while (!is_done()) {
		for (i = 0; i < 2; i++)
			ask(&ways[i]);
		for (i = 0; i < 2; i++)
			answer(&ways[i]);
		for (i = 0; i < 2; i++)
			for (k = 0; k < QPS; k++) {
				sent(&ways[i], &ways[i].tx[k]);
				receive(&ways[i], &ways[i].rx[k]);
			}
		if (now() - progress > WAIT)
			fail("nothing for %g s: asked %u sent %u left %u came %u, asked %u sent %u left %u came %u",
			     WAIT, ways[0].asked, ways[0].sent, ways[0].left, ways[0].came,
			     ways[1].asked, ways[1].sent, ways[1].left, ways[1].came);
	}
}

int main(int argc, char **argv)
{
	int rounds, round, i, k;

	NEED(argc == 5);
	open_device(argv[1], argv[2], argv[3]);
	rounds = atoi(argv[4]);
	for (i = 0; i < 2; i++)
		for (k = 0; k < QPS; k++) {
			ways[i].tx[k] = make_deep(i ? far : pd, IBV_QPT_RC, QUEUE);
			ways[i].rx[k] = make_deep(i ? pd : far, IBV_QPT_RC, QUEUE);
			join_how(&ways[i].tx[k], &ways[i].rx[k], (struct joining){ ACCESS, 18, 7, 7 });
		}
	for (round = 0; round < rounds; round++) {
		test = "many small messages";
		exchange(MOST + 50, MOST);
		test = "few large messages";
		exchange(8, 4);
	}
	for (i = 0; i < 2; i++)
		for (k = 0; k < QPS; k++) {
			drop(&ways[i].tx[k]);
			drop(&ways[i].rx[k]);
		}
	printf("ok nccl: %d rounds of %d messages each way\n", rounds, MOST + 50 + 8);
	return 0;
}
