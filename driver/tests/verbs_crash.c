// SPDX-License-Identifier: GPL-2.0
/*
 * verbs_crash DEVICE[,DEVICE] GID_INDEX SEED ROUNDS: two processes with requests under way both ways, of
 * which one is killed. Everything that the other one has posted comes back, and those that
 * come after them are served.
 */
#include "verbs_ends.h"

#define PAIRS	3

/* Ends of each process, as it tells them to the other one. */
struct card {
	uint32_t qpn, rkey;
	uint64_t area;
};

static struct end ends[PAIRS];
static struct side peers[PAIRS];

static void join_process(struct ibv_pd *mine, struct ibv_context *theirs, int from, int to)
{
	struct card card;
	int k;

	for (k = 0; k < PAIRS; k++) {
		struct side *s = &ends[k].s, *peer = &peers[k];

		NEED(try_make(mine, IBV_QPT_RC, UNDER_WAY, s));
		card = (struct card){ s->qp->qp_num, s->mr->rkey, (uintptr_t)s->area };
		NEED(write(to, &card, sizeof(card)) == sizeof(card));
		NEED(read(from, &card, sizeof(card)) == sizeof(card));
		NEED(peer->qp = calloc(1, sizeof(*peer->qp)));
		NEED(peer->mr = calloc(1, sizeof(*peer->mr)));
		peer->qp->qp_num = card.qpn;
		peer->qp->context = theirs;
		peer->mr->rkey = card.rkey;
		peer->area = (uint8_t *)(uintptr_t)card.area;
		NEED(try_join(s, peer, 0, 0, usual));
	}
	/* receives are there before the other one sends */
	for (k = 0; k < PAIRS; k++)
		while (ends[k].maybe_received < UNDER_WAY)
			receive(&ends[k]);
	NEED(write(to, &card, 1) == 1);
	NEED(read(from, &card, 1) == 1);
}

/* It ends by being killed. */
static void child(char **argv, int from, int to)
{
	int k;

	open_device(argv[1], argv[2], argv[3]);
	join_process(far, pd->context, from, to);
	for (;;)
		for (k = 0; k < PAIRS; k++)
			NEED(keep_going(&ends[k], &peers[k]));
}

static void one_round(char **argv)
{
	unsigned long before = done;
	int there[2], back[2], status, k;
	double end;
	pid_t pid;

	NEED(!pipe(there) && !pipe(back) && (pid = fork()) >= 0);
	if (!pid)
		child(argv, there[0], back[1]);
	memset(ends, 0, sizeof(ends));
	join_process(pd, far->context, back[0], there[1]);
	end = now() + 0.02 + next_random() % 200 / 1000.0;
	while (now() < end || done - before < 100) {
		for (k = 0; k < PAIRS; k++)
			NEED(keep_going(&ends[k], &peers[k]));
		NEED(now() < end + WAIT);
	}
	NEED(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	NEED(WIFSIGNALED(status));
	for (k = 0; k < PAIRS; k++) {
		wait_back(&ends[k]);
		drop(&ends[k].s);
		free(peers[k].qp);
		free(peers[k].mr);
	}
	for (k = 0; k < 2; k++) {
		close(there[k]);
		close(back[k]);
	}
}

int main(int argc, char **argv)
{
	int rounds, round;

	NEED(argc == 5);
	rounds = atoi(argv[4]);
	open_device(argv[1], argv[2], argv[3]);
	test = "crash";
	for (round = 0; round < rounds; round++)
		one_round(argv);
	NEED(flushed);
	printf("ok crash: %d times, %lu done, %lu not done\n", round, done, flushed);
	return 0;
}
