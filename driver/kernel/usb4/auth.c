// SPDX-License-Identifier: GPL-2.0
/* Proof that the other end has the same key: HMAC-SHA256 (RFC 2104) over both HELLOs. */
#include <crypto/algapi.h>
#include <crypto/sha2.h>
#include <linux/module.h>
#include <linux/string.h>

#include "usb4/tb.h"

#define BLOCK	64

static char *key;
module_param(key, charp, 0);
MODULE_PARM_DESC(key, "a secret that both ends must know; without it any machine at the cable is taken");

bool fer_have_key(void)
{
	return key && *key;
}

struct text {
	u8 pad[BLOCK];
	u32 op, status, attempt, epoch;
	uuid_t from, to;
	struct fer_hello first, second;
};

static void pad_key(u8 pad[BLOCK], u8 with)
{
	size_t len = strlen(key), i;

	memset(pad, 0, BLOCK);
	if (len > BLOCK)
		sha256(key, len, pad);
	else
		memcpy(pad, key, len);
	for (i = 0; i < BLOCK; i++)
		pad[i] ^= with;
}

/* first: the HELLO that was the request, second: that of the answer */
void fer_mac(u8 mac[FER_MAC], const struct fer_packet *packet, const struct fer_hello *first,
	     const struct fer_hello *second)
{
	struct text inner = {
		.op = packet->op, .status = packet->status, .attempt = packet->attempt,
		.epoch = packet->epoch, .from = packet->from, .to = packet->to,
		.first = *first, .second = *second,
	};
	u8 outer[BLOCK + FER_MAC];

	memset(mac, 0, FER_MAC);
	if (!fer_have_key())
		return;
	pad_key(inner.pad, 0x36);
	sha256((u8 *)&inner, sizeof(inner), outer + BLOCK);
	pad_key(outer, 0x5c);
	sha256(outer, sizeof(outer), mac);
	memzero_explicit(&inner, sizeof(inner));
	memzero_explicit(outer, sizeof(outer));
}

bool fer_mac_right(const struct fer_packet *packet, const struct fer_hello *first,
		   const struct fer_hello *second)
{
	u8 mac[FER_MAC];

	fer_mac(mac, packet, first, second);
	return !crypto_memneq(mac, packet->mac, FER_MAC);
}
