// SPDX-License-Identifier: GPL-2.0
/* The device of a peer: the first rail to it makes the device, the last one takes it along. */
#include <crypto/sha2.h>
#include <linux/ctype.h>
#include <linux/etherdevice.h>
#include <linux/random.h>
#include <linux/utsname.h>

#include "usb4/tb.h"

static DEFINE_MUTEX(devices_lock);	/* they come and go one at a time */

/* The peer's host id, or for a cable between two ports of one host, that of the other port. */
static void peer_of(const struct fer_tb *tb, u8 peer[FER_HOST_ID])
{
	bool self = !memcmp(tb->theirs.host, fer_host_id, FER_HOST_ID);

	memcpy(peer, self ? (const u8 *)tb->xd->remote_uuid : tb->theirs.host, FER_HOST_ID);
}

/* Names that stay the same when a host starts again: after the peer's host name. */
static void name_of(struct fer_tb *tb, char *name, size_t size, u8 mac[ETH_ALEN])
{
	char text[2 * (__NEW_UTS_LEN + 1)];
	u8 hash[SHA256_DIGEST_SIZE];
	const char *peer;
	size_t i;

	mutex_lock(&tb->xd->lock);
	peer = tb->xd->device_name;
	snprintf(name, size, "ferrule-%.24s", peer && *peer ? peer : "peer");
	mutex_unlock(&tb->xd->lock);
	for (i = 0; name[i]; i++)
		if (!isalnum(name[i]) && name[i] != '-' && name[i] != '_')
			name[i] = '-';
	snprintf(text, sizeof(text), "%s %s", init_utsname()->nodename, name);
	sha256((u8 *)text, strlen(text), hash);
	memcpy(mac, hash, ETH_ALEN);
	mac[0] = (mac[0] & ~3) | 2;
}

static int join(struct fer_tb *tb, const u8 *peer)
{
	struct fer_dev *dev;
	int err = -ENODEV;

	mutex_lock(&fer_topology);
	dev = fer_dev_find(peer);
	if (dev)
		err = fer_rail_join(dev->channel, &tb->rail);
	if (!err)
		err = fer_tb_rings(tb);
	mutex_unlock(&fer_topology);
	return err;
}

/* Under devices_lock and fer_topology; gives the latter up. */
static void drop_unused(const u8 *peer)
{
	struct fer_dev *dev = NULL;
	bool any = false;
	int i;

	lockdep_assert_held(&devices_lock);
	lockdep_assert_held(&fer_topology);
	if (memchr_inv(peer, 0, FER_HOST_ID))
		dev = fer_dev_find(peer);
	for (i = 0; dev && i < FER_MAX_RAILS; i++)
		any |= !!dev->channel->rails[i];
	if (dev && !any)
		fer_dev_remove(dev); /* gives fer_topology up */
	else
		mutex_unlock(&fer_topology);
}

/* Join the peer's device, which the first rail makes, and start the rings. */
int fer_tb_join(struct fer_tb *tb)
{
	char name[40];
	u8 peer[FER_HOST_ID], mac[ETH_ALEN];
	int err;

	mutex_lock(&tb->lock);
	peer_of(tb, peer);
	mutex_unlock(&tb->lock);
	mutex_lock(&devices_lock);
	if (memcmp(tb->peer, peer, sizeof(peer))) {
		mutex_lock(&fer_topology);
		drop_unused(tb->peer); /* it was kept while the machine slept */
		memcpy(tb->peer, peer, sizeof(peer));
	}
	err = join(tb, peer);
	if (err == -ENODEV) {
		name_of(tb, name, sizeof(name), mac);
		err = fer_dev_add(peer, name, mac, tb->xd->tb->dev.parent);
		if (!err)
			err = join(tb, peer);
	}
	mutex_unlock(&devices_lock);
	return err;
}

/* The session to join, or the one to begin: the same for all rails that come up meanwhile. */
u32 fer_tb_session(struct fer_tb *tb)
{
	u32 epoch = get_random_u32() | 1;

	mutex_lock(&fer_topology);
	if (tb->rail.channel)
		epoch = fer_session_offer(tb->rail.channel, epoch);
	mutex_unlock(&fer_topology);
	return epoch;
}

/* False: the device is gone, or the session is over already. */
bool fer_tb_begin(struct fer_tb *tb, u32 epoch, u32 window)
{
	struct fer_channel *channel;
	bool up = false;

	mutex_lock(&fer_topology);
	channel = tb->rail.channel;
	if (channel)
		up = fer_rail_up(&tb->rail, epoch, window);
	if (up)
		dev_info(&tb->service->dev, "rail %d of %s is up\n", tb->rail.index,
			 dev_name(&channel->dev->ib.dev));
	mutex_unlock(&fer_topology);
	return up;
}

/* The last rail removes the device, unless the machine only sleeps. */
void fer_tb_leave(struct fer_tb *tb)
{
	mutex_lock(&devices_lock);
	mutex_lock(&fer_topology);
	if (tb->rail.channel)
		fer_rail_leave(&tb->rail);
	if (READ_ONCE(tb->life) == FER_TB_ASLEEP)
		mutex_unlock(&fer_topology);
	else
		drop_unused(tb->peer);
	mutex_unlock(&devices_lock);
}
