// SPDX-License-Identifier: GPL-2.0
/*
 * A hostile peer, for tests on the loopback wire: root writes a frame into debugfs, and
 * it comes out of the wire. Its checksum is made right. If its epoch is 0 it is sent in
 * sequence, as by a peer who keeps to the rules of the link but not to those of queue pairs;
 * otherwise as it is.
 */
#include <linux/debugfs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "ferrule_rdma.h"

#define AT_EPOCH	12
#define AT_CRC		60

static int inject(struct fer_link *link, u8 *data, u32 size)
{
	struct fer_rail *rail = link->rails[0];
	struct fer_frame *frame, stray = { .data = data, .size = size };
	struct fer_hdr hdr;
	__le32 crc;

	lockdep_assert_held(&link->engine);
	if (!rail)
		return -ENOTCONN;
	crc = cpu_to_le32(fer_crc32c(data, AT_CRC, data + FER_HDR, size - FER_HDR));
	memcpy(data + AT_CRC, &crc, sizeof(crc));
	if (memchr_inv(data + AT_EPOCH, 0, 4)) {
		rail->ops->tx(rail, &stray); /* the loopback copies it */
		return 0;
	}
	if (fer_hdr_open(data, size, &hdr) != FER_OK || !fer_in_sequence(hdr.op))
		return -EINVAL; /* the link itself does not take that */
	frame = fer_link_get(link);
	if (!frame)
		return -EAGAIN;
	memcpy(frame->data + FER_HDR, data + FER_HDR, hdr.len);
	fer_link_send(link, frame, &hdr);
	return 0;
}

static ssize_t inject_write(struct file *file, const char __user *from, size_t size, loff_t *pos)
{
	struct fer_link *link = file->private_data;
	u8 *data;
	int err;

	if (size < FER_HDR || size > FER_FRAME)
		return -EINVAL;
	data = memdup_user(from, size);
	if (IS_ERR(data))
		return PTR_ERR(data);
	mutex_lock(&link->engine);
	err = inject(link, data, size);
	mutex_unlock(&link->engine);
	fer_link_kick(link);
	kfree(data);
	return err ? err : size;
}

static const struct file_operations inject_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = inject_write,
};

void fer_inject_debugfs(struct fer_link *link, struct dentry *dir)
{
	debugfs_create_file("inject", 0200, dir, link, &inject_fops);
}
