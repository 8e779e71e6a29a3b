// SPDX-License-Identifier: GPL-2.0
/* The life of devices: one for each peer, and those that are wired to themselves. */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/random.h>
#include <net/addrconf.h>

#include "ferrule_rdma.h"

static LIST_HEAD(devices);	/* fer_topology */
static atomic_t device_count = ATOMIC_INIT(0);	/* until the last line of their end */

/* ---- a device is taken away: processes are about to lose it ---- */

static int client_add(struct ib_device *ibdev)
{
	if (ibdev->ops.dealloc_driver != fer_dev_dealloc)
		return -EOPNOTSUPP;
	/* here, as it may be gone again when its registration returns */
	fer_debugfs_add(to_fer_dev(ibdev));
	return 0;
}

static void client_remove(struct ib_device *ibdev, void *unused)
{
	WRITE_ONCE(to_fer_dev(ibdev)->leaving, true);
}

/*
 * Clients are told in turn, the last that came first; we come after ib_uverbs. So this is in time
 * also when soft-RoCE takes all devices of its driver id away.
 */
struct ib_client fer_client = {
	.name = "ferrule_rdma",
	.add = client_add,
	.remove = client_remove,
};

/* ---- devices ---- */

/*
 * The end of a device, asked for by this module, or another one that takes all
 * devices of the driver id away. No process uses it any more. Also after a failed start.
 */
void fer_dev_dealloc(struct ib_device *ibdev)
{
	struct fer_dev *dev = to_fer_dev(ibdev);
	int i;

	fer_debugfs_remove(dev);
	mutex_lock(&fer_topology);
	list_del_init(&dev->node);
	for (i = 0; dev->channel && i < FER_MAX_RAILS; i++)
		if (dev->channel->rails[i])
			fer_rail_leave(dev->channel->rails[i]);
	mutex_unlock(&fer_topology);
	if (dev->channel)
		fer_channel_destroy(dev->channel);
	if (dev->netdev)
		fer_netdev_destroy(dev->netdev);
	xa_destroy(&dev->qps);
	xa_destroy(&dev->ahs);
	atomic_dec(&device_count);
}

static struct fer_dev *alloc_dev(void)
{
	struct fer_dev *dev = ib_alloc_device(fer_dev, ib);

	if (!dev)
		return NULL;
	atomic_inc(&device_count);
	ib_set_device_ops(&dev->ib, &fer_device_ops);
	INIT_LIST_HEAD(&dev->node);
	INIT_LIST_HEAD(&dev->owners);
	mutex_init(&dev->owner_lock);
	spin_lock_init(&dev->mr_lock);
	hash_init(dev->mrs);
	xa_init_flags(&dev->qps, XA_FLAGS_ALLOC);
	xa_init_flags(&dev->ahs, XA_FLAGS_ALLOC1);
	dev->next_qpn = get_random_u32() & FER_QPN_MASK;
	dev->ib.node_type = RDMA_NODE_IB_CA;
	dev->ib.phys_port_cnt = 1;
	dev->ib.num_comp_vectors = 1;
	/* the doorbell, and asking for events; all else goes through the rings */
	dev->ib.uverbs_cmd_mask |= BIT_ULL(IB_USER_VERBS_CMD_POST_SEND) |
				   BIT_ULL(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
	strscpy(dev->ib.node_desc, "ferrule", sizeof(dev->ib.node_desc));
	return dev;
}

/* The name, or if another device has it, the name with a number. */
static int register_dev(struct fer_dev *dev, const char *name)
{
	char numbered[IB_DEVICE_NAME_MAX];
	int err = ib_register_device(&dev->ib, name, NULL);

	if (err != -ENFILE || strchr(name, '%'))
		return err;
	snprintf(numbered, sizeof(numbered), "%.*s-%%d", IB_DEVICE_NAME_MAX - 8, name);
	return ib_register_device(&dev->ib, numbered, NULL);
}

static int add(struct fer_dev *dev, const char *name, const char *net_name, const u8 *mac)
{
	int err;

	dev->netdev = fer_netdev_create(net_name, mac);
	if (IS_ERR(dev->netdev)) {
		err = PTR_ERR(dev->netdev);
		dev->netdev = NULL;
		return err;
	}
	addrconf_addr_eui48((u8 *)&dev->ib.node_guid, dev->netdev->dev_addr);
	dev->channel = fer_channel_create(dev, dev->netdev->name);
	if (IS_ERR(dev->channel)) {
		err = PTR_ERR(dev->channel);
		dev->channel = NULL;
		return err;
	}
	if (!dev->ib.dev.parent) {
		err = fer_loopback_join(dev->channel);
		if (err)
			return err;
	}
	mutex_lock(&fer_topology);
	list_add_tail(&dev->node, &devices);
	mutex_unlock(&fer_topology);
	return register_dev(dev, name);
}

/* A device for the peer, without rails; without peer and parent one that is wired to itself. */
int fer_dev_add(const u8 *peer, const char *name, const u8 *mac, struct device *parent)
{
	struct fer_dev *dev = alloc_dev();
	char net_name[IFNAMSIZ];
	int err;

	if (!dev)
		return -ENOMEM;
	dev->ib.dev.parent = parent;
	strscpy(net_name, "frl%d", sizeof(net_name));
	if (peer) {
		memcpy(dev->peer, peer, FER_HOST_ID);
		snprintf(net_name, sizeof(net_name), "frl-%.11s",
			 strchr(name, '-') ? strchr(name, '-') + 1 : name);
	}
	err = add(dev, name, net_name, mac);
	if (err)
		ib_dealloc_device(&dev->ib);
	return err;
}

/* Under fer_topology, and good as long as it is held. */
struct fer_dev *fer_dev_find(const u8 *peer)
{
	struct fer_dev *dev;

	lockdep_assert_held(&fer_topology);
	list_for_each_entry(dev, &devices, node)
		if (!memcmp(dev->peer, peer, FER_HOST_ID))
			return dev;
	return NULL;
}

/* dev: found under fer_topology, which is held and given up here. */
void fer_dev_remove(struct fer_dev *dev)
{
	bool ours = ib_device_try_get(&dev->ib);

	lockdep_assert_held(&fer_topology);
	WRITE_ONCE(dev->leaving, true);
	mutex_unlock(&fer_topology);
	if (ours)
		ib_unregister_device_and_put(&dev->ib);
	else
		msleep(20); /* another thread is taking it away right now */
}

void fer_dev_remove_all(void)
{
	struct fer_dev *dev;

	for (;;) {
		mutex_lock(&fer_topology);
		dev = list_first_entry_or_null(&devices, struct fer_dev, node);
		if (!dev)
			break;
		fer_dev_remove(dev);
	}
	mutex_unlock(&fer_topology);
	/* another thread may be in fer_dev_dealloc() still, which is code of this module */
	while (atomic_read(&device_count))
		msleep(20);
}
