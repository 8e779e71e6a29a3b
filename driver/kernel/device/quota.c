// SPDX-License-Identifier: GPL-2.0
/*
 * Quotas of objects per process. A device has so many objects of each kind, and no process gets
 * more than its share of them, so that one process cannot take what another one needs.
 */
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <rdma/uverbs_ioctl.h>

#include "ferrule_rdma.h"

static unsigned int process_share = 50;
module_param(process_share, uint, 0644);
MODULE_PARM_DESC(process_share, "percent of a device's objects of each kind that one process may have");

/* A process that has the device open, as often as it likes. */
struct fer_owner {
	struct list_head node;
	struct pid *pid;
	unsigned int contexts;		/* dev->owner_lock */
	atomic_t count[FER_KINDS];
};

static const struct {
	const char *name;
	int most;
} kinds[FER_KINDS] = {
	[FER_KIND_QP] = { "queue pairs", FER_MAX_QP },
	[FER_KIND_CQ] = { "completion queues", FER_MAX_CQ },
	[FER_KIND_MR] = { "memory regions", FER_MAX_MR },
	[FER_KIND_PD] = { "protection domains", FER_MAX_PD },
	[FER_KIND_SRQ] = { "shared receive queues", FER_MAX_SRQ },
	[FER_KIND_AH] = { "address handles", FER_MAX_AH },
};

static int share(enum fer_kind kind)
{
	return max(kinds[kind].most * min(READ_ONCE(process_share), 100u) / 100, 1u);
}

static struct fer_owner *find(struct fer_dev *dev, struct pid *pid)
{
	struct fer_owner *owner;

	lockdep_assert_held(&dev->owner_lock);
	list_for_each_entry(owner, &dev->owners, node)
		if (owner->pid == pid)
			return owner;
	return NULL;
}

int fer_owner_join(struct ib_ucontext *uctx, struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(uctx->device);
	struct fer_owner *owner;
	int err = 0;

	mutex_lock(&dev->owner_lock);
	owner = find(dev, task_tgid(current));
	if (!owner) {
		owner = kzalloc(sizeof(*owner), GFP_KERNEL_ACCOUNT);
		if (!owner) {
			err = -ENOMEM;
			goto unlock;
		}
		owner->pid = get_pid(task_tgid(current));
		list_add(&owner->node, &dev->owners);
	}
	owner->contexts++;
	to_fer_ucontext(uctx)->owner = owner;
unlock:
	mutex_unlock(&dev->owner_lock);
	return err;
}

/* All objects of the context are gone by now. */
void fer_owner_leave(struct ib_ucontext *uctx)
{
	struct fer_owner *owner = to_fer_ucontext(uctx)->owner;
	struct fer_dev *dev = to_fer_dev(uctx->device);

	mutex_lock(&dev->owner_lock);
	if (!--owner->contexts) {
		list_del(&owner->node);
		put_pid(owner->pid);
		kfree(owner);
	}
	mutex_unlock(&dev->owner_lock);
}

int fer_take(struct fer_dev *dev, struct ib_udata *udata, enum fer_kind kind,
	     struct fer_owner **whose)
{
	struct fer_ucontext *uctx = rdma_udata_to_drv_context(udata, struct fer_ucontext, ib);

	*whose = uctx ? uctx->owner : NULL;
	if (!atomic_add_unless(&dev->count[kind], 1, kinds[kind].most))
		return -ENOMEM;
	if (!uctx)
		return 0;
	/* the share may have become smaller than what is there */
	if (atomic_inc_return(&uctx->owner->count[kind]) <= share(kind))
		return 0;
	fer_give(dev, uctx->owner, kind);
	return -ENOMEM;
}

void fer_give(struct fer_dev *dev, struct fer_owner *owner, enum fer_kind kind)
{
	atomic_dec(&dev->count[kind]);
	if (owner)
		atomic_dec(&owner->count[kind]);
}

/* For debugfs. */
void fer_owners_show(struct fer_dev *dev, struct seq_file *file)
{
	struct fer_owner *owner;
	int kind;

	for (kind = 0; kind < FER_KINDS; kind++)
		seq_printf(file, "%s: %d of %d, %d a process\n", kinds[kind].name,
			   atomic_read(&dev->count[kind]), kinds[kind].most, share(kind));
	mutex_lock(&dev->owner_lock);
	list_for_each_entry(owner, &dev->owners, node) {
		seq_printf(file, "process %d:", pid_nr(owner->pid));
		for (kind = 0; kind < FER_KINDS; kind++)
			seq_printf(file, " %d %s", atomic_read(&owner->count[kind]),
				   kinds[kind].name);
		seq_putc(file, '\n');
	}
	mutex_unlock(&dev->owner_lock);
}
