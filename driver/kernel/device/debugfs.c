// SPDX-License-Identifier: GPL-2.0
/* For root's eyes: counters, queue pairs, and the faults of the loopback wire. */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "verbs/qp.h"

struct dentry *fer_debugfs;	/* of all devices */

static const char *const names[FER_STAT_COUNT] = {
#define FER_NAME(id, text) [FER_STAT_##id] = text,
	FER_STATS(FER_NAME)
#undef FER_NAME
};

static int stats_show(struct seq_file *file, void *unused)
{
	struct fer_dev *dev = file->private;
	int i;

	for (i = 0; i < FER_STAT_COUNT; i++)
		seq_printf(file, "%s %llu\n", names[i], READ_ONCE(dev->channel->stats[i]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int qps_show(struct seq_file *file, void *unused)
{
	struct fer_dev *dev = file->private;
	struct fer_qp *qp;
	unsigned long i;

	for (i = 0; (qp = fer_qp_next(dev, &i)); i++) {
		mutex_lock(&qp->lock);
		seq_printf(file, "%u type %d state %d peer %u: sent %u answered %u top %u",
			   qp->ib.qp_num, qp->ib.qp_type, qp->state, qp->peer_qpn, qp->req.psn,
			   qp->req.una, qp->req.top);
		seq_printf(file, " reads %u, expected %u owed %u\n", qp->req.reads, qp->resp.psn,
			   qp->resp.res_tail - qp->resp.res_head);
		mutex_unlock(&qp->lock);
		fer_qp_put(qp);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(qps);

static int rails_show(struct seq_file *file, void *unused)
{
	struct fer_dev *dev = file->private;
	struct fer_channel *channel = dev->channel;
	struct fer_rail *rail;
	int i;

	mutex_lock(&channel->engine);
	fer_each_rail(channel, rail, i) {
		seq_printf(file, "%d %s %s: ", i, rail->ops->name, rail->up ? "up" : "down");
		seq_printf(file, "tx_frames %llu tx_bytes %llu rx_frames %llu rx_bytes %llu",
			   rail->tx_frames, rail->tx_bytes, rail->rx_frames, rail->rx_bytes);
		seq_printf(file, " resent %llu unacked %u losses %llu\n", rail->resent,
			   rail->unacked, rail->losses);
	}
	mutex_unlock(&channel->engine);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(rails);

static int owners_show(struct seq_file *file, void *unused)
{
	fer_owners_show(file->private, file);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(owners);

void fer_debugfs_add(struct fer_dev *dev)
{
	dev->debugfs = debugfs_create_dir(dev_name(&dev->ib.dev), fer_debugfs);
	debugfs_create_file("stats", 0400, dev->debugfs, dev, &stats_fops);
	debugfs_create_file("qps", 0400, dev->debugfs, dev, &qps_fops);
	debugfs_create_file("rails", 0400, dev->debugfs, dev, &rails_fops);
	debugfs_create_file("owners", 0400, dev->debugfs, dev, &owners_fops);
	fer_loopback_debugfs(dev->channel, dev->debugfs);
}

void fer_debugfs_remove(struct fer_dev *dev)
{
	debugfs_remove_recursive(dev->debugfs);
	dev->debugfs = NULL;
}
