// SPDX-License-Identifier: GPL-2.0
/* Packing and checking of frames; also compiled in user space by driver/tests. */
#include "wire.h"

static void put(u8 *p, u64 value, int bytes)
{
	while (bytes--) {
		*p++ = (u8)value;
		value >>= 8;
	}
}

static u64 get(const u8 *p, int bytes)
{
	u64 value = 0;

	while (bytes--)
		value = value << 8 | p[bytes];
	return value;
}

#define OFF_CRC 60

static_assert(OFF_CRC + sizeof(u32) == FER_HDR, "the checksum ends the header");

void fer_hdr_seal(u8 *frame, const struct fer_hdr *hdr)
{
	put(frame, FER_MAGIC, 4);
	put(frame + 4, FER_VERSION, 1);
	put(frame + 5, hdr->op, 1);
	put(frame + 6, hdr->flags, 2);
	put(frame + 8, hdr->len, 2);
	put(frame + 10, hdr->window, 2);
	put(frame + 12, hdr->epoch, 4);
	put(frame + 16, hdr->seq, 4);
	put(frame + 20, hdr->ack, 4);
	put(frame + 24, hdr->dqpn, 4);
	put(frame + 28, hdr->sqpn, 4);
	put(frame + 32, hdr->psn, 4);
	put(frame + 36, hdr->imm, 4);
	put(frame + 40, hdr->addr, 8);
	put(frame + 48, hdr->rkey, 4);
	put(frame + 52, hdr->total, 4);
	put(frame + 56, hdr->offset, 4);
	put(frame + OFF_CRC, fer_crc32c(frame, OFF_CRC, frame + FER_HDR, hdr->len), 4);
}

static bool op_known(u8 op)
{
	return op == FER_OP_CHANNEL_ACK || op == FER_OP_SKIP ||
	       (op >= FER_OP_SEND && op <= FER_OP_DGRAM);
}

/* Whether the payload is a piece of the message that it says it is. */
static bool piece_fits(const struct fer_hdr *h)
{
	if (h->total > FER_MAX_MSG || h->offset > h->total)
		return false;
	if (h->len > h->total - h->offset)
		return false;
	/* pieces are full but for the last one, so that psn and offset agree */
	if (h->offset % FER_PAYLOAD)
		return false;
	if (!!(h->flags & FER_FIRST) != (h->offset == 0))
		return false;
	if (h->flags & FER_LAST)
		return h->offset + h->len == h->total;
	return h->len == FER_PAYLOAD && h->offset + h->len < h->total;
}

static bool fields_fit(const struct fer_hdr *h)
{
	if (h->flags & ~FER_FLAGS)
		return false;
	if (h->dqpn > FER_QPN_MASK || h->sqpn > FER_QPN_MASK || h->psn > FER_PSN_MASK)
		return false;
	switch (h->op) {
	case FER_OP_SEND:
	case FER_OP_WRITE:
	case FER_OP_READ_RESP:
		return piece_fits(h);
	case FER_OP_DGRAM:
		return piece_fits(h) && h->flags & FER_FIRST && h->flags & FER_LAST;
	case FER_OP_READ:
		return h->len == 0 && h->total <= FER_MAX_MSG && h->offset == 0;
	case FER_OP_CMP_SWAP:
	case FER_OP_FETCH_ADD:
		return h->len == 16;
	case FER_OP_ATOMIC_RESP:
		return h->len == 8;
	case FER_OP_CHANNEL_ACK:
		return h->len == FER_ACK_MAP;
	default:
		return h->len == 0;
	}
}

enum fer_bad fer_hdr_open(const u8 *frame, size_t size, struct fer_hdr *hdr)
{
	struct fer_hdr h;

	if (size < FER_HDR || size > FER_FRAME)
		return FER_BAD_SIZE;
	if (get(frame, 4) != FER_MAGIC)
		return FER_BAD_MAGIC;
	if (frame[4] != FER_VERSION)
		return FER_BAD_VERSION;
	h.len = get(frame + 8, 2);
	if (h.len != size - FER_HDR)
		return FER_BAD_SIZE;
	if (get(frame + OFF_CRC, 4) != fer_crc32c(frame, OFF_CRC, frame + FER_HDR, h.len))
		return FER_BAD_CRC;
	h.op = frame[5];
	if (!op_known(h.op))
		return FER_BAD_OP;
	if (frame[7])
		return FER_BAD_FIELD;
	h.flags = frame[6];
	h.window = get(frame + 10, 2);
	h.epoch = get(frame + 12, 4);
	h.seq = get(frame + 16, 4);
	h.ack = get(frame + 20, 4);
	h.dqpn = get(frame + 24, 4);
	h.sqpn = get(frame + 28, 4);
	h.psn = get(frame + 32, 4);
	h.imm = get(frame + 36, 4);
	h.addr = get(frame + 40, 8);
	h.rkey = get(frame + 48, 4);
	h.total = get(frame + 52, 4);
	h.offset = get(frame + 56, 4);
	if (!fields_fit(&h))
		return FER_BAD_FIELD;
	*hdr = h;
	return FER_OK;
}
