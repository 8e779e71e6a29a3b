// SPDX-License-Identifier: GPL-2.0
/*
 * wire_check SEED: the codec of driver/kernel/channel/wire.c in user space, under the sanitizers.
 * What is sealed opens again as it was; what was altered in any bit does not; and whatever
 * opens, however it came about, is safe to use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernel/channel/wire.h"

static u32 table[256];
static u32 state;

static u32 crc(u32 value, const u8 *p, size_t n)
{
	while (n--)
		value = table[(value ^ *p++) & 255] ^ (value >> 8);
	return value;
}

u32 fer_crc32c(const u8 *head, size_t head_len, const u8 *tail, size_t tail_len)
{
	return ~crc(crc(~0u, head, head_len), tail, tail_len);
}

static u32 next_random(void)
{
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

#define NEED(x) do { if (!(x)) { \
	fprintf(stderr, "line %d: %s\n", __LINE__, #x); exit(1); } } while (0)

static const u8 ops[] = {
	FER_OP_CHANNEL_ACK, FER_OP_SKIP, FER_OP_SEND, FER_OP_WRITE, FER_OP_READ, FER_OP_CMP_SWAP,
	FER_OP_FETCH_ADD, FER_OP_READ_RESP, FER_OP_ATOMIC_RESP, FER_OP_ACK, FER_OP_NAK,
	FER_OP_DGRAM,
};

/* Any header that may be sent. */
static struct fer_hdr valid(void)
{
	struct fer_hdr h = {
		.op = ops[next_random() % sizeof(ops)], .window = next_random(), .epoch = next_random(), .seq = next_random(),
		.ack = next_random(), .dqpn = next_random() & FER_QPN_MASK, .sqpn = next_random() & FER_QPN_MASK,
		.psn = next_random() & FER_PSN_MASK, .imm = next_random(), .rkey = next_random(),
		.addr = (u64)next_random() << 32 | next_random(),
	};
	u32 piece;

	switch (h.op) {
	case FER_OP_SEND:
	case FER_OP_WRITE:
	case FER_OP_READ_RESP:
	case FER_OP_DGRAM:
		h.total = next_random() % (h.op == FER_OP_DGRAM ? FER_PAYLOAD + 1 : 5 * FER_PAYLOAD);
		piece = next_random() % fer_frames(h.total);
		h.offset = piece * FER_PAYLOAD;
		h.len = h.total - h.offset < FER_PAYLOAD ? h.total - h.offset : FER_PAYLOAD;
		h.flags = (piece ? 0 : FER_FIRST) | (h.offset + h.len == h.total ? FER_LAST : 0);
		break;
	case FER_OP_READ:
		h.total = next_random() % (FER_MAX_MSG + 1);
		break;
	case FER_OP_CMP_SWAP:
	case FER_OP_FETCH_ADD:
		h.len = 16;
		break;
	case FER_OP_ATOMIC_RESP:
		h.len = 8;
		break;
	case FER_OP_CHANNEL_ACK:
		h.len = 32;
		break;
	}
	return h;
}

static void equal(const struct fer_hdr *a, const struct fer_hdr *b)
{
	NEED(a->op == b->op && a->flags == b->flags && a->len == b->len);
	NEED(a->window == b->window && a->epoch == b->epoch && a->seq == b->seq);
	NEED(a->ack == b->ack && a->dqpn == b->dqpn && a->sqpn == b->sqpn && a->psn == b->psn);
	NEED(a->imm == b->imm && a->addr == b->addr && a->rkey == b->rkey);
	NEED(a->total == b->total && a->offset == b->offset);
}

/* Properties on which the driver relies without another look. */
static void safe(const struct fer_hdr *h, size_t size)
{
	NEED(h->len == size - FER_HDR && h->len <= FER_PAYLOAD);
	NEED(h->dqpn <= FER_QPN_MASK && h->psn <= FER_PSN_MASK && !(h->flags & ~FER_FLAGS));
	if (h->op == FER_OP_SEND || h->op == FER_OP_WRITE || h->op == FER_OP_READ_RESP) {
		NEED(h->total <= FER_MAX_MSG && (u64)h->offset + h->len <= h->total);
		NEED(!!(h->flags & FER_LAST) == (h->offset + h->len == h->total));
	}
	if (h->op == FER_OP_CMP_SWAP || h->op == FER_OP_FETCH_ADD)
		NEED(h->len == 16);
	if (h->op == FER_OP_CHANNEL_ACK)
		NEED(h->len == 32);
}

/* A heap copy of just that size, so that reading past the end is found. */
static enum fer_bad open_copy(const u8 *frame, size_t size, struct fer_hdr *out)
{
	u8 *copy = malloc(size ? size : 1);
	enum fer_bad bad;

	memcpy(copy, frame, size);
	bad = fer_hdr_open(copy, size, out);
	free(copy);
	return bad;
}

int main(int argc, char **argv)
{
	static u8 frame[FER_FRAME + 1];
	struct fer_hdr h, out;
	u32 i, j, opened = 0;

	state = (argc > 1 ? strtoul(argv[1], NULL, 0) : 1) | 1;
	for (i = 0; i < 256; i++) {
		u32 value = i;

		for (j = 0; j < 8; j++)
			value = value & 1 ? value >> 1 ^ 0x82f63b78 : value >> 1;
		table[i] = value;
	}
	NEED(fer_crc32c((const u8 *)"1234", 4, (const u8 *)"56789", 5) == 0xe3069283);

	for (i = 0; i < 3000; i++) { /* there and back, and with one bit altered */
		h = valid();
		for (j = 0; j < h.len; j++)
			frame[FER_HDR + j] = next_random();
		fer_hdr_seal(frame, &h);
		NEED(open_copy(frame, FER_HDR + h.len, &out) == FER_OK);
		equal(&h, &out);
		safe(&out, FER_HDR + h.len);
		j = next_random() % (FER_HDR + h.len);
		frame[j] ^= 1 << next_random() % 8;
		NEED(open_copy(frame, FER_HDR + h.len, &out) != FER_OK);
		NEED(open_copy(frame, next_random() % (FER_HDR + h.len), &out) != FER_OK);
	}
	for (i = 0; i < 60000; i++) { /* a hostile peer that computes its checksum right */
		size_t size;

		h = valid();
		for (j = 1 + next_random() % 3; j; j--) {
			u32 odd = next_random() % 4 ? next_random() : ~0u >> next_random() % 32;

			switch (next_random() % 8) {
			case 0: h.op = odd; break;
			case 1: h.flags = odd; break;
			case 2: h.len = odd % (FER_PAYLOAD + 1); break;
			case 3: h.dqpn = odd; break;
			case 4: h.psn = odd; break;
			case 5: h.total = odd; break;
			case 6: h.offset = odd % 2 ? odd : odd / FER_PAYLOAD * FER_PAYLOAD; break;
			case 7: h.sqpn = odd; break;
			}
		}
		size = FER_HDR + h.len;
		if (size > FER_HDR + 64 && next_random() % 8)
			continue; /* the checksum of long ones takes most of the time */
		fer_hdr_seal(frame, &h);
		if (open_copy(frame, size, &out) == FER_OK) {
			safe(&out, size);
			opened++;
		}
	}
	NEED(opened > 100);
	for (i = 0; i < 200000; i++) { /* noise */
		size_t size = next_random() % 200;

		for (j = 0; j < size; j++)
			frame[j] = next_random();
		NEED(open_copy(frame, size, &out) != FER_OK);
	}
	NEED(fer_psn_diff(2, 0xfffffe) == 4 && fer_psn_diff(0xfffffe, 2) == -4);
	NEED(fer_frames(0) == 1 && fer_frames(FER_PAYLOAD) == 1 && fer_frames(FER_PAYLOAD + 1) == 2);
	printf("ok, %u of the ill-meant frames were harmless\n", opened);
	return 0;
}
