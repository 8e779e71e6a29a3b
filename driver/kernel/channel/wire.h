/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The frame that two machines exchange: layout, packing and checks.
 *
 * Nothing here allocates, locks or logs, and nothing needs the kernel: wire.c
 * is compiled into the module and into the user-space tests alike.
 */
#ifndef FER_WIRE_H
#define FER_WIRE_H

#ifdef __KERNEL__
#include <linux/build_bug.h>
#include <linux/types.h>
#else
#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#endif

#define FER_FRAME	4096	/* what a ring of the controller carries at most */
#define FER_HDR		64
#define FER_PAYLOAD	(FER_FRAME - FER_HDR)
#define FER_ACK_MAP	32	/* bytes of CHANNEL_ACK: a bit for each frame behind `ack` */
#define FER_MAGIC	0x31524546u	/* "FER1" */
#define FER_VERSION	1
#define FER_MAX_MSG	(1u << 30)
#define FER_PSN_MASK	0xffffffu
#define FER_QPN_MASK	0xffffffu

enum fer_op {
	/* about the channel itself: outside of the sequence, never sent again */
	FER_OP_CHANNEL_ACK = 1,	/* payload: which frames after `ack` are here */
	/* in sequence */
	FER_OP_SKIP = 3,	/* takes the place of a lost frame that is not repeated */
	FER_OP_SEND = 16,
	FER_OP_WRITE,
	FER_OP_READ,
	FER_OP_CMP_SWAP,
	FER_OP_FETCH_ADD,
	FER_OP_READ_RESP,
	FER_OP_ATOMIC_RESP,
	FER_OP_ACK,
	FER_OP_NAK,		/* `imm`: enum fer_nak, `offset`: the RNR timer */
	FER_OP_DGRAM,
};

enum fer_flag {
	FER_FIRST = 1,
	FER_LAST = 2,
	FER_IMM = 4,
	FER_SOLICITED = 8,
	FER_UNRELIABLE = 16,	/* of UC or UD: if it gets lost it stays lost */
	FER_PLEASE_ACK = 32,
	FER_FLAGS = 63,
};

enum fer_nak {
	FER_NAK_RNR = 1,	/* no receive was posted */
	FER_NAK_SEQ,		/* a request is missing: start again at psn */
	FER_NAK_INVALID,
	FER_NAK_ACCESS,
	FER_NAK_OPERATION,
};

struct fer_hdr {
	u8 op;
	u8 flags;
	u16 len;	/* payload of this frame */
	u16 window;	/* frames that the sender of this one can hold */
	u32 epoch;	/* of the session */
	u32 seq;	/* of the channel, one per frame */
	u32 ack;	/* all before this one are here */
	u32 dqpn;
	u32 sqpn;
	u32 psn;	/* of the queue pair, one per frame */
	u32 imm;
	u64 addr;	/* of the message's first byte, at the end that holds it */
	u32 rkey;	/* DGRAM: qkey */
	u32 total;	/* bytes of the message */
	u32 offset;	/* of this payload in the message */
};

/* Reasons to refuse a frame. The order is that of the checks. */
enum fer_bad {
	FER_OK,
	FER_BAD_SIZE,
	FER_BAD_MAGIC,
	FER_BAD_VERSION,
	FER_BAD_CRC,
	FER_BAD_OP,
	FER_BAD_FIELD,
	FER_BAD_COUNT,
};

/* CRC32C (Castagnoli) over both parts; given by the program around wire.c. */
u32 fer_crc32c(const u8 *head, size_t head_len, const u8 *tail, size_t tail_len);

/* Write the 64 bytes before the hdr->len bytes of payload that lie behind them. */
void fer_hdr_seal(u8 *frame, const struct fer_hdr *hdr);

/* Check a frame of size bytes as it came off the wire. hdr is set only if all is well. */
enum fer_bad fer_hdr_open(const u8 *frame, size_t size, struct fer_hdr *hdr);

static inline bool fer_in_sequence(u8 op)
{
	return op != FER_OP_CHANNEL_ACK;
}

/* a - b for 24-bit sequence numbers, from -2^23 to 2^23 - 1 */
static inline int fer_psn_diff(u32 a, u32 b)
{
	int d = (int)((a - b) & FER_PSN_MASK);

	return d & 0x800000 ? d - 0x1000000 : d;
}

/* Frames that a message of that many bytes takes; an empty one takes one. */
static inline u32 fer_frames(u32 bytes)
{
	return bytes ? (bytes + FER_PAYLOAD - 1) / FER_PAYLOAD : 1;
}

#endif
