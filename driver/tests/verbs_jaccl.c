// SPDX-License-Identifier: GPL-2.0
/*
 * verbs_jaccl DEVICE[,DEVICE] GID_INDEX SEED reduce|lossy: messages as JACCL sends them: a few
 * unreliable connected queue pairs, one piece of memory for each request, receives posted before
 * the peer sends. `reduce` adds two ranks' numbers and needs a wire that loses nothing; `lossy`
 * is for one that does: what arrives is a whole message, right, in order, and once.
 */
#include "verbs_side.h"

#define QPS	4		/* of at most 10 */
#define QUEUE	32		/* requests of each kind */
#define PIECE	16384		/* bytes that one queue pair carries at a time, 2 of them under way */
#define MOST	(512 << 10)

struct rank {
	struct ibv_pd *pd;
	struct side wire[QPS];
	int32_t *mine;
	int32_t *sum;
	uint32_t posted[QPS], came[QPS];	/* pieces: receive posted, added */
	uint32_t sent[QPS], left[QPS];		/* pieces: posted, on the wire */
};

static struct rank ranks[2];

static void post_one(struct side *s, int recv, uint32_t at, uint32_t n, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)s->area + at, n, s->mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1,
					.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr *bad_recv, to = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	if (recv)
		NEED(!ibv_post_recv(s->qp, &to, &bad_recv));
	else
		NEED(!ibv_post_send(s->qp, &wr, &bad));
}

static void open_ranks(void)
{
	int i, k;

	for (i = 0; i < 2; i++) {
		ranks[i].pd = i ? far : pd;
		NEED(ranks[i].mine = malloc(MOST));
		NEED(ranks[i].sum = malloc(MOST));
		for (k = 0; k < QPS; k++)
			ranks[i].wire[k] = make_deep(ranks[i].pd, IBV_QPT_UC, QUEUE);
	}
	for (k = 0; k < QPS; k++)
		join(&ranks[0].wire[k], &ranks[1].wire[k]);
}

static void close_ranks(void)
{
	int i, k;

	for (i = 0; i < 2; i++) {
		for (k = 0; k < QPS; k++)
			drop(&ranks[i].wire[k]);
		free(ranks[i].mine);
		free(ranks[i].sum);
	}
}

/* ---- an all-reduce: each rank sends all of its numbers and adds what comes ---- */

static uint32_t bytes_of(uint32_t piece, uint32_t total)
{
	uint32_t at = piece * PIECE;

	return at >= total ? 0 : total - at < PIECE ? total - at : PIECE;
}

/* Areas: two places to receive into, then two to send from. Pieces go to queue pairs in turns. */
static void receive_next(struct rank *r, int k, uint32_t total)
{
	uint32_t piece = r->posted[k] * QPS + k;

	if (bytes_of(piece, total))
		post_one(&r->wire[k], 1, r->posted[k]++ % 2 * PIECE, PIECE, 1000 + piece);
}

static void send_next(struct rank *r, int k, uint32_t total)
{
	uint32_t piece = r->sent[k] * QPS + k, at = (2 + r->sent[k] % 2) * PIECE;
	uint32_t n = bytes_of(piece, total);

	if (!n)
		return;
	memcpy(r->wire[k].area + at, (uint8_t *)r->mine + piece * PIECE, n);
	r->sent[k]++;
	post_one(&r->wire[k], 0, at, n, piece);
}

static int add_next(struct rank *r, int k, uint32_t total)
{
	struct side *s = &r->wire[k];
	uint32_t piece, n, i;
	struct ibv_wc wc;
	int got = ibv_poll_cq(s->cq, 1, &wc);
	int32_t *from;

	NEED(got >= 0);
	if (!got)
		return 0;
	if (wc.status)
		fail("%s", ibv_wc_status_str(wc.status));
	if (wc.opcode == IBV_WC_SEND) {
		NEED(wc.wr_id == r->left[k]++ * QPS + k);
		return 1;
	}
	piece = r->came[k] * QPS + k;
	n = bytes_of(piece, total);
	NEED(wc.opcode == IBV_WC_RECV && wc.wr_id == 1000 + piece && wc.byte_len == n);
	from = (int32_t *)(s->area + r->came[k]++ % 2 * PIECE);
	for (i = 0; i < n / 4; i++)
		r->sum[piece * PIECE / 4 + i] += from[i];
	receive_next(r, k, total);
	return 1;
}

/* A rank sends what the peer has a receive for; JACCL knows that from what has come so far. */
static void all_reduce(uint32_t total)
{
	uint32_t pieces = (total + PIECE - 1) / PIECE, done = 0, i, k;
	double last = now();

	for (i = 0; i < 2; i++) {
		struct rank *r = &ranks[i];

		scribble((uint8_t *)r->mine, total);
		memcpy(r->sum, r->mine, total);
		memset(r->posted, 0, sizeof(r->posted));
		memset(r->came, 0, sizeof(r->came));
		memset(r->sent, 0, sizeof(r->sent));
		memset(r->left, 0, sizeof(r->left));
		for (k = 0; k < QPS; k++) {
			receive_next(r, k, total);
			receive_next(r, k, total);
		}
	}
	while (done < 4 * pieces) {
		for (i = 0; i < 2; i++)
			for (k = 0; k < QPS; k++) {
				struct rank *r = &ranks[i];

				if (r->sent[k] < r->left[k] + 2 &&
				    r->sent[k] < ranks[!i].posted[k])
					send_next(r, k, total);
				while (add_next(r, k, total)) {
					done++;
					last = now();
				}
			}
		if (now() - last > WAIT)
			fail("%u of %u completions after %g s", done, 4 * pieces, WAIT);
	}
	for (i = 0; i < total / 4; i++) {
		int32_t sum = (int32_t)((uint32_t)ranks[0].mine[i] + (uint32_t)ranks[1].mine[i]);

		if (ranks[0].sum[i] != sum || ranks[1].sum[i] != sum)
			fail("number %u of %u: %d and %d, not %d", i, total / 4, ranks[0].sum[i],
			     ranks[1].sum[i], sum);
	}
}

static void reduce(void)
{
	static const uint32_t sizes[] = { 4, 64, 4028, 4032, 4036, 8064, 8068, PIECE - 4, PIECE,
					  PIECE + 4, 100000, MOST };
	uint32_t i, again;

	for (again = 0; again < 3; again++)
		for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
			all_reduce(sizes[i]);
	printf("ok jaccl reduce\n");
}

/* ---- on a wire that loses: what is delivered ---- */

#define ROUND	(QUEUE / 2)	/* messages of a queue pair before what came is counted */
#define ROUNDS	12
#define ROOM	(AREA / 2 / QUEUE)

/* Each message says its number, and all of it follows from that. */
static uint32_t write_message(uint8_t *to, uint32_t number)
{
	static const uint32_t edges[] = { 4, 64, 4031, 4032, 4033, 8064, 8065, ROOM };
	uint32_t x = number * 2654435761u, n = edges[(x >> 20) % 8], i;

	memcpy(to, &number, 4);
	for (i = 4; i < n; i++) {
		to[i] = x >> 24;
		x = x * 1664525u + 1013904223u;
	}
	return n;
}

static uint32_t came(struct side *s, uint32_t *next, uint32_t behind)
{
	static uint8_t wanted[ROOM];
	uint32_t number, n, count = 0;
	struct ibv_wc wc;
	uint8_t *data;

	while (ibv_poll_cq(s->cq, 1, &wc) == 1) {
		if (wc.status)
			fail("receive: %s", ibv_wc_status_str(wc.status));
		data = s->area + (wc.wr_id % QUEUE) * ROOM;
		memcpy(&number, data, 4);
		if (number < *next || number >= behind)
			fail("message %u, where %u to %u may come", number, *next, behind - 1);
		*next = number + 1;
		n = write_message(wanted, number);
		if (wc.byte_len != n)
			fail("message %u has %u bytes, not %u", number, wc.byte_len, n);
		same(wanted, data, n, "message");
		count++;
	}
	return count;
}

/* One rank sends; a message on a reliable queue pair says that all before it had their chance. */
static void lossy(void)
{
	uint32_t next[QPS] = { 0 }, posted[QPS] = { 0 }, got[QPS] = { 0 }, all = 0, round, i, k;
	struct side a = make(pd, IBV_QPT_RC), b = make(far, IBV_QPT_RC);

	join_how(&a, &b, (struct joining){ ACCESS, 18, 7, 7 });
	for (round = 0; round < ROUNDS; round++) {
		for (k = 0; k < QPS; k++) {
			struct side *from = &ranks[0].wire[k], *to = &ranks[1].wire[k];

			for (; posted[k] - got[k] < ROUND; posted[k]++)
				post_one(to, 1, posted[k] % QUEUE * ROOM, ROOM, posted[k]);
			for (i = 0; i < ROUND; i++) {
				uint32_t n = write_message(from->area, round * ROUND + i);

				post_one(from, 0, 0, n, i);
				wait_for(from, i, IBV_WC_SUCCESS); /* it is on the wire, or lost */
			}
		}
		post_recv(&b, 0, 64, round);
		NEED(!post(&a, IBV_WR_SEND, 0, 64, NULL, 0, round, 0));
		wait_for(&b, round, IBV_WC_SUCCESS);
		wait_for(&a, round, IBV_WC_SUCCESS);
		for (k = 0; k < QPS; k++)
			got[k] += came(&ranks[1].wire[k], &next[k], (round + 1) * ROUND);
	}
	for (k = 0; k < QPS; k++)
		all += got[k];
	NEED(all && all <= QPS * ROUNDS * ROUND);
	printf("ok jaccl lossy: %u of %u messages came\n", all, QPS * ROUNDS * ROUND);
	drop(&a);
	drop(&b);
}

int main(int argc, char **argv)
{
	NEED(argc == 5);
	open_device(argv[1], argv[2], argv[3]);
	test = argv[4];
	open_ranks();
	if (!strcmp(test, "reduce"))
		reduce();
	else if (!strcmp(test, "lossy"))
		lossy();
	else
		fail("no such test");
	close_ranks();
	return 0;
}
