// SPDX-License-Identifier: GPL-2.0
/*
 * A hostile peer, for tests on the loopback wire: root writes a frame into debugfs, and
 * it comes out of the wire. Its checksum is made right. If its epoch is 0 it is sent in
 * sequence, as by a peer who keeps to the rules of the channel but not to those of queue pairs;
 * otherwise as it is.
 */
#include <linux/debugfs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "ferrule_rdma.h"

#define AT_EPOCH	12
#define AT_CRC		60

static int inject(struct fer_channel *channel, u8 *data, u32 size)
{
	struct fer_rail *rail = channel->rails[0];
	struct fer_frame *frame, stray = { .data = data, .size = size };
	struct fer_hdr hdr;
	__le32 crc;

	lockdep_assert_held(&channel->engine);
	if (!rail)
		return -ENOTCONN;
	crc = cpu_to_le32(fer_crc32c(data, AT_CRC, data + FER_HDR, size - FER_HDR));
	memcpy(data + AT_CRC, &crc, sizeof(crc));
	if (memchr_inv(data + AT_EPOCH, 0, 4)) {
		rail->ops->tx(rail, &stray); /* the loopback copies it */
		return 0;
	}
	if (fer_hdr_open(data, size, &hdr) != FER_OK || !fer_in_sequence(hdr.op))
		return -EINVAL; /* the channel itself does not take that */
	frame = fer_channel_get(channel);
	if (!frame)
		return -EAGAIN;
	memcpy(frame->data + FER_HDR, data + FER_HDR, hdr.len);
	fer_channel_send(channel, frame, &hdr);
	return 0;
}

static ssize_t inject_write(struct file *file, const char __user *from, size_t size, loff_t *pos)
{
	struct fer_channel *channel = file->private_data;
	u8 *data;
	int err;

	if (size < FER_HDR || size > FER_FRAME)
		return -EINVAL;
	data = memdup_user(from, size);
	if (IS_ERR(data))
		return PTR_ERR(data);
	mutex_lock(&channel->engine);
	err = inject(channel, data, size);
	mutex_unlock(&channel->engine);
	fer_channel_kick(channel);
	kfree(data);
	return err ? err : size;
}

static const struct file_operations inject_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = inject_write,
};

void fer_inject_debugfs(struct fer_channel *channel, struct dentry *dir)
{
	debugfs_create_file("inject", 0200, dir, channel, &inject_fops);
}
