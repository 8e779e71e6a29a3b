// SPDX-License-Identifier: GPL-2.0
/*
 * verbs_storm DEVICE,DEVICE GID_INDEX SEED STOP: traffic between two devices that come and go, until
 * the file STOP is there. Each time one goes, every request that was posted comes back, done or
 * flushed, in time; then it begins anew. It prints how often, and how many requests were which.
 */
#include <fcntl.h>

#include "verbs_ends.h"

#define PAIRS	3
struct pair {
	struct end end[2];
	int joined;
};

static struct pair pairs[PAIRS];
static struct ibv_pd *both[2];
static const char *names[2];
static unsigned long times, told;
static char said[sizeof(refused)];

static struct ibv_pd *try_pd(const char *name)
{
	struct ibv_context *opened = try_open(name);
	struct ibv_pd *in = opened ? ibv_alloc_pd(opened) : NULL;

	if (opened && !in)
		ibv_close_device(opened);
	if (in)
		NEED(!fcntl(opened->async_fd, F_SETFL, O_NONBLOCK));
	return in;
}

static void count_events(struct ibv_context *of)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(of, &event)) {
		told += event.event_type == IBV_EVENT_DEVICE_FATAL;
		ibv_ack_async_event(&event);
	}
}

static void go(const char *stop)
{
	unsigned long before = done;
	int i, k, good = 1;

	for (k = 0; k < PAIRS; k++) {
		struct end *e = pairs[k].end;

		memset(&pairs[k], 0, sizeof(pairs[k]));
		for (i = 0; i < 2; i++)
			good &= try_make(both[i], IBV_QPT_RC, UNDER_WAY, &e[i].s);
		pairs[k].joined = good && try_join(&e[0].s, &e[1].s, 0, 0, usual) &&
				  try_join(&e[1].s, &e[0].s, 0, 0, usual);
		good = pairs[k].joined;
	}
	if (!good && strcmp(refused, said)) { /* as is to be while devices come and go; not for long */
		printf("not to be had: %s\n", refused);
		fflush(stdout);
		strcpy(said, refused);
	}
	while (good && access(stop, F_OK))
		for (k = 0; k < PAIRS; k++)
			for (i = 0; i < 2; i++)
				good &= keep_going(&pairs[k].end[i], &pairs[k].end[!i].s);
	for (k = 0; k < PAIRS; k++)
		for (i = 0; i < 2 && pairs[k].joined; i++)
			wait_back(&pairs[k].end[i]);
	times += done != before;
	for (k = 0; k < PAIRS; k++)
		for (i = 0; i < 2; i++)
			drop(&pairs[k].end[i].s);
}

int main(int argc, char **argv)
{
	char *comma;
	int i;

	NEED(argc == 5 && (comma = strchr(argv[1], ',')));
	*comma = 0;
	names[0] = argv[1];
	names[1] = comma + 1;
	gid_index = atoi(argv[2]);
	seed = strtoul(argv[3], NULL, 0);
	setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
	test = "storm";
	while (access(argv[4], F_OK)) {
		for (i = 0; i < 2; i++)
			both[i] = try_pd(names[i]);
		if (both[0] && both[1])
			go(argv[4]);
		else
			poll(NULL, 0, 20);
		for (i = 0; i < 2; i++) {
			if (!both[i])
				continue;
			context = both[i]->context;
			count_events(context);
			ibv_dealloc_pd(both[i]);
			ibv_close_device(context);
		}
	}
	printf("ok storm: %lu times, %lu done, %lu not done, %lu devices said that they go\n", times, done,
	       flushed, told);
	return 0;
}
