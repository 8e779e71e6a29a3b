// SPDX-License-Identifier: GPL-2.0
/*
 * verbs_check DEVICE GID_INDEX SEED TEST...: queue pairs of one device talk to each other, and
 * every byte is compared. Each wait has a deadline; the first thing that is wrong ends it.
 */
#include "verbs_events.h"

/* ---- the tests ---- */

static const uint32_t sizes[] = { 0, 1, 7, 64, 1000, 4031, 4032, 4033, 8064, 40000, 1 << 20 };

/* Each operation with each size, and what lies around the target stays as it is. */
static void operations(enum ibv_qp_type type)
{
	struct side a = make(pd, type), b = make(pd, type);
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
						  IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						  IBV_WR_RDMA_READ };
	uint8_t *before = malloc(AREA);
	uint64_t id = 1;
	size_t i, j;

	join(&a, &b);
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (j = 0; j < (type == IBV_QPT_RC ? 5 : 4); j++, id++) {
			enum ibv_wr_opcode op = ops[j];
			uint32_t n = sizes[i];
			struct side *to = op == IBV_WR_RDMA_READ ? &a : &b;
			struct ibv_wc wc;

			scribble(a.area, n + 64);
			scribble(b.area, n + 64);
			memcpy(before, to->area, AREA);
			if (op != IBV_WR_RDMA_WRITE && op != IBV_WR_RDMA_READ)
				post_recv(&b, op == IBV_WR_RDMA_WRITE_WITH_IMM ? 1 << 20 : 13,
					  n, id);
			NEED(!post(&a, op, op == IBV_WR_RDMA_READ ? 13 : 5, n, &b,
				   op == IBV_WR_RDMA_READ ? 5 : 13, id, 0));
			wc = wait_for(&a, id, IBV_WC_SUCCESS);
			if (op != IBV_WR_RDMA_WRITE && op != IBV_WR_RDMA_READ) {
				wc = wait_for(&b, id, IBV_WC_SUCCESS);
				NEED(wc.byte_len == n);
				NEED(op == IBV_WR_SEND || (wc.wc_flags & IBV_WC_WITH_IMM &&
				     wc.imm_data == htobe32(0x12340000 + (uint32_t)id)));
				NEED(wc.opcode == (op == IBV_WR_RDMA_WRITE_WITH_IMM ?
						   IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV));
			} else if (type == IBV_QPT_UC) {
				/* nothing tells when it has arrived: a SEND behind it does */
				post_recv(&b, 0, 0, id);
				NEED(!post(&a, IBV_WR_SEND, 0, 0, NULL, 0, id, 0));
				wait_for(&a, id, IBV_WC_SUCCESS);
				wait_for(&b, id, IBV_WC_SUCCESS);
			}
			same((to == &a ? b.area : a.area) + 5, to->area + 13, n, "data");
			same(before, to->area, 13, "before the data");
			same(before + 13 + n, to->area + 13 + n, AREA - 13 - n, "behind the data");
		}
	}
	free(before);
	drop(&a);
	drop(&b);
}

/* Many requests under way, both ways at a time, of random kinds and sizes. */
static void traffic(void)
{
	struct side s[2] = { make(pd, IBV_QPT_RC), make(pd, IBV_QPT_RC) };
	const uint32_t slot = AREA / 2 / DEPTH;
	int round, i, side;

	join(&s[0], &s[1]);
	for (round = 0; round < 8; round++) {
		enum ibv_wr_opcode op[2][DEPTH];
		uint32_t length[2][DEPTH];
		int left[2] = { 0, 0 };

		/* an area's first half is sent from, its second half is written to */
		for (side = 0; side < 2; side++)
			scribble(s[side].area, AREA / 2);
		for (side = 0; side < 2; side++)
			for (i = 0; i < DEPTH; i++) {
				static const enum ibv_wr_opcode kinds[] = {
					IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
					IBV_WR_RDMA_WRITE_WITH_IMM };
				op[side][i] = kinds[next_random() % 4];
				length[side][i] = next_random() % 4 ? next_random() % 9000 : next_random() % slot;
			}
		for (side = 0; side < 2; side++)
			for (i = 0; i < DEPTH; i++) {
				if (op[side][i] == IBV_WR_SEND ||
				    op[side][i] == IBV_WR_RDMA_WRITE_WITH_IMM) {
					post_recv(&s[!side], AREA / 2 + i * slot, slot, 1000 + i);
					left[!side]++;
				}
			}
		for (i = 0; i < DEPTH; i++)
			for (side = 0; side < 2; side++) {
				uint32_t mine = i * slot, theirs = AREA / 2 + i * slot;
				int read = op[side][i] == IBV_WR_RDMA_READ;

				NEED(!post(&s[side], op[side][i], read ? theirs : mine,
					   length[side][i], &s[!side], read ? mine : theirs, i, 0));
				left[side]++;
			}
		for (side = 0; side < 2; side++) {
			int sent = 0;

			while (left[side]--) {
				struct ibv_wc wc = wait_any(&s[side]);

				if (wc.status != IBV_WC_SUCCESS)
					fail("round %d: %s", round, ibv_wc_status_str(wc.status));
				if (wc.wr_id < 1000)
					NEED(wc.wr_id == (uint64_t)sent++);
			}
		}
		for (side = 0; side < 2; side++) {
			for (i = 0; i < DEPTH; i++) {
				uint32_t at = i * slot;

				if (op[side][i] == IBV_WR_RDMA_READ)
					same(s[!side].area + at, s[side].area + AREA / 2 + at,
					     length[side][i], "read");
				else
					same(s[side].area + at, s[!side].area + AREA / 2 + at,
					     length[side][i], "sent or written");
			}
		}
	}
	drop(&s[0]);
	drop(&s[1]);
}

/* An access that must be refused: the target stays as it is, and both ends stop. */
static void attack(const char *what, int access, uint32_t rkey, uint64_t addr, uint32_t length,
		   struct ibv_pd *target_pd, enum ibv_wr_opcode op)
{
	struct side a = make(pd, IBV_QPT_RC), b = make(target_pd, IBV_QPT_RC);
	struct ibv_send_wr *bad, wr = { .wr_id = 7, .num_sge = 1, .opcode = op,
					.send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge = { (uintptr_t)a.area, length, a.mr->lkey };
	struct ibv_qp_init_attr init;
	uint8_t *before = malloc(AREA);
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	join_how(&a, &b, (struct joining){ access, 16, 7, 7 });
	memset(a.area, 0x66, AREA);
	memcpy(before, b.area, AREA);
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = addr ? addr : (uintptr_t)b.area;
	wr.wr.rdma.rkey = rkey ? rkey : b.mr->rkey;
	if (length > AREA / 2)
		wr.wr.rdma.remote_addr += AREA / 2;
	NEED(!ibv_post_send(a.qp, &wr, &bad));
	wc = wait_any(&a);
	if (wc.status != IBV_WC_REM_ACCESS_ERR)
		fail("%s: %s", what, ibv_wc_status_str(wc.status));
	same(before, b.area, AREA, what);
	NEED(!ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	NEED(!ibv_post_send(a.qp, &wr, &bad));
	wait_for(&a, 7, IBV_WC_WR_FLUSH_ERR);
	free(before);
	drop(&a);
	drop(&b);
}

static void attacks(void)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct side victim = make(other, IBV_QPT_RC);
	struct ibv_mr *read_only;
	int kind;

	NEED(read_only = ibv_reg_mr(pd, victim.area, AREA, IBV_ACCESS_REMOTE_READ));
	for (kind = 0; kind < 2; kind++) {
		enum ibv_wr_opcode op = kind ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;

		attack("a key that was not given", ACCESS, 0xdeadbeef, 0, 100, pd, op);
		attack("a key of another protection domain", ACCESS, victim.mr->rkey,
		       (uintptr_t)victim.area, 100, pd, op);
		attack("beyond the end", ACCESS, 0, 0, AREA / 2 + 1, pd, op);
		attack("before the beginning", ACCESS, read_only->rkey,
		       (uintptr_t)victim.area - 1, 100, pd, op);
		attack("an address that wraps", ACCESS, read_only->rkey, ~0ull - 10, 100, pd, op);
		attack("a queue pair without access", IBV_ACCESS_LOCAL_WRITE, 0, 0, 100, pd, op);
	}
	attack("memory that is read-only", ACCESS, read_only->rkey, (uintptr_t)victim.area, 100, pd,
	       IBV_WR_RDMA_WRITE);
	NEED(!ibv_dereg_mr(read_only));
	drop(&victim);
	NEED(!ibv_dealloc_pd(other));
}

/* Every request comes back, whatever happens. */
static void endings(void)
{
	struct side a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int i;

	test = "no receive is posted";
	join_how(&a, &b, (struct joining){ ACCESS, 16, 7, 1 });
	NEED(!post(&a, IBV_WR_SEND, 0, 100, NULL, 0, 1, 0));
	NEED(!post(&a, IBV_WR_SEND, 0, 100, NULL, 0, 2, 0));
	wait_for(&a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
	wait_for(&a, 2, IBV_WC_WR_FLUSH_ERR);
	drop(&a);
	drop(&b);

	test = "a receive comes late";
	a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
	join(&a, &b);
	scribble(a.area, 50000);
	NEED(!post(&a, IBV_WR_SEND, 0, 50000, NULL, 0, 1, 0));
	NEED(!post(&a, IBV_WR_RDMA_WRITE, 0, 5000, &b, 60000, 2, 0));
	poll(NULL, 0, 30);
	post_recv(&b, 0, 50000, 3);
	wait_for(&b, 3, IBV_WC_SUCCESS);
	wait_for(&a, 1, IBV_WC_SUCCESS);
	wait_for(&a, 2, IBV_WC_SUCCESS);
	same(a.area, b.area, 50000, "late");

	test = "flush";
	for (i = 0; i < 10; i++)
		post_recv(&b, 0, 100, 100 + i);
	NEED(!ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
	for (i = 0; i < 10; i++)
		wait_for(&b, 100 + i, IBV_WC_WR_FLUSH_ERR);
	post_recv(&b, 0, 100, 200); /* also what is posted afterwards */
	wait_for(&b, 200, IBV_WC_WR_FLUSH_ERR);
	drop(&b);

	test = "the peer is gone";
	NEED(!post(&a, IBV_WR_SEND, 0, 100, NULL, 0, 5, 0));
	drop(&a); /* with a request under way */
	a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
	join_how(&a, &b, (struct joining){ ACCESS, 12, 2, 7 });
	drop(&b);
	NEED(!post(&a, IBV_WR_SEND, 0, 100, NULL, 0, 6, 0));
	wait_for(&a, 6, IBV_WC_RETRY_EXC_ERR);
	drop(&a);

	test = "a message that is too long";
	a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
	join(&a, &b);
	post_recv(&b, 0, 99, 1);
	NEED(!post(&a, IBV_WR_SEND, 0, 100, NULL, 0, 1, 0));
	wait_for(&b, 1, IBV_WC_LOC_LEN_ERR);
	wait_for(&a, 1, IBV_WC_REM_INV_REQ_ERR);
	drop(&a);
	drop(&b);
}

static void atomics(void)
{
	struct side a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
	volatile uint64_t *word = (uint64_t *)b.area, *old = (uint64_t *)a.area;
	struct ibv_sge sge = { (uintptr_t)a.area, 8, a.mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED };
	uint64_t i;

	join(&a, &b);
	wr.wr.atomic.remote_addr = (uintptr_t)b.area;
	wr.wr.atomic.rkey = b.mr->rkey;
	for (i = 0; i < 20; i++) {
		wr.wr_id = i;
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.compare_add = 3;
		NEED(!ibv_post_send(a.qp, &wr, &bad));
		wait_for(&a, i, IBV_WC_SUCCESS);
		NEED(*old == 3 * i && *word == 3 * i + 3);
	}
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 60;
	wr.wr.atomic.swap = 5;
	for (i = 0; i < 2; i++) { /* the second one finds another value */
		NEED(!ibv_post_send(a.qp, &wr, &bad));
		wait_for(&a, wr.wr_id, IBV_WC_SUCCESS);
		NEED(*old == (i ? 5 : 60) && *word == 5);
	}
	drop(&a);
	drop(&b);
}

/* Take objects of each kind until there are no more; gives how many queue pairs that was. */
static int take_all(void)
{
	struct ibv_context *own = ibv_open_device(context->device);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1,
				  .grh = { .sgid_index = gid_index, .hop_limit = 1 } };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1 } };
	struct ibv_pd *first;
	static char area[64];
	int qps = 0, i;

	NEED(own && (first = ibv_alloc_pd(own)) && !ibv_query_gid(own, 1, gid_index, &ah.grh.dgid));
	NEED(init.send_cq = init.recv_cq = ibv_create_cq(own, 1, NULL, NULL, 0));
	while (ibv_create_qp(first, &init))
		qps++;
	NEED(errno == ENOMEM);
	for (i = 0; ibv_create_cq(own, 1, NULL, NULL, 0); i++)
		NEED(i < 10000);
	for (i = 0; ibv_reg_mr(first, area, sizeof(area), 0); i++)
		NEED(i < 10000);
	for (i = 0; ibv_create_srq(first, &srq); i++)
		NEED(i < 10000);
	for (i = 0; ibv_create_ah(first, &ah); i++)
		NEED(i < 10000);
	for (i = 0; ibv_alloc_pd(own); i++)
		NEED(i < 10000);
	return qps;
}

/* A process that takes all that it can get leaves enough for others, and all of it when it dies. */
static void greed(void)
{
	int i, said[2], qps, before = 0, status;
	struct side a, b;
	pid_t child;

	for (i = 0; i < 2; i++) {
		NEED(!pipe(said) && (child = fork()) >= 0);
		if (!child) {
			qps = take_all();
			NEED(write(said[1], &qps, sizeof(qps)) == sizeof(qps));
			pause();
		}
		close(said[1]);
		NEED(read(said[0], &qps, sizeof(qps)) == sizeof(qps));
		close(said[0]);
		NEED(qps > 2 && (!i || qps == before));
		before = qps;
		a = make(pd, IBV_QPT_RC), b = make(pd, IBV_QPT_RC);
		join(&a, &b);
		NEED(!post(&a, IBV_WR_RDMA_WRITE, 0, 100, &b, 0, 1, 0));
		wait_for(&a, 1, IBV_WC_SUCCESS);
		drop(&a);
		drop(&b);
		NEED(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
	}
}

static void rc(void)
{
	operations(IBV_QPT_RC);
}

static void uc(void)
{
	operations(IBV_QPT_UC);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "rc", rc }, { "uc", uc }, { "traffic", traffic }, { "attacks", attacks },
	{ "endings", endings }, { "events", events }, { "drained", drained },
	{ "atomics", atomics }, { "greed", greed }, { NULL, NULL },
};

int main(int argc, char **argv)
{
	int i, k;

	NEED(argc > 4);
	open_device(argv[1], argv[2], argv[3]);
	for (i = 4; i < argc; i++) {
		double begin = now();

		test = argv[i];
		for (k = 0; tests[k].name && strcmp(test, tests[k].name); k++)
			;
		if (!tests[k].name)
			fail("no such test");
		tests[k].run();
		printf("ok %s %.2f s\n", argv[i], now() - begin);
		fflush(stdout);
	}
	NEED(!ibv_dealloc_pd(pd));
	NEED(!ibv_close_device(context));
	return 0;
}
