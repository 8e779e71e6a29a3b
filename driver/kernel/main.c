// SPDX-License-Identifier: GPL-2.0
/* Loading and unloading, and the life of devices. */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/random.h>
#include <net/addrconf.h>

#include "ferrule_rdma.h"

static unsigned int loopback;
module_param(loopback, uint, 0444);
MODULE_PARM_DESC(loopback, "devices that are wired to themselves, for tests (at most 8)");

static DEFINE_MUTEX(devices_lock);
static LIST_HEAD(devices);

/*
 * The end of a device, whoever asked for it: this module, or another one that takes all
 * devices of the driver id away. No process uses it any more. Also after a failed start.
 */
void fer_dev_dealloc(struct ib_device *ibdev)
{
	struct fer_dev *dev = to_fer_dev(ibdev);

	fer_debugfs_remove(dev);
	if (dev->link)
		fer_link_destroy(dev->link);
	if (dev->netdev)
		fer_netdev_destroy(dev->netdev);
	xa_destroy(&dev->qps);
	xa_destroy(&dev->ahs);
	mutex_lock(&devices_lock);
	list_del_init(&dev->node);
	mutex_unlock(&devices_lock);
}

static struct fer_dev *alloc_dev(void)
{
	struct fer_dev *dev = ib_alloc_device(fer_dev, ib);

	if (!dev)
		return NULL;
	ib_set_device_ops(&dev->ib, &fer_device_ops);
	INIT_LIST_HEAD(&dev->node);
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

static int add_device(const struct fer_wire_ops *wire)
{
	struct fer_dev *dev = alloc_dev();
	int err;

	if (!dev)
		return -ENOMEM;
	dev->netdev = fer_netdev_create();
	if (IS_ERR(dev->netdev)) {
		err = PTR_ERR(dev->netdev);
		dev->netdev = NULL;
		goto dealloc;
	}
	addrconf_addr_eui48((u8 *)&dev->ib.node_guid, dev->netdev->dev_addr);
	dev->link = fer_link_create(dev, wire);
	if (IS_ERR(dev->link)) {
		err = PTR_ERR(dev->link);
		dev->link = NULL;
		goto dealloc;
	}
	err = ib_device_set_netdev(&dev->ib, dev->netdev, 1);
	if (err)
		goto dealloc;
	mutex_lock(&devices_lock);
	list_add_tail(&dev->node, &devices);
	mutex_unlock(&devices_lock);
	err = ib_register_device(&dev->ib, "ferrule%d", NULL);
	if (err)
		goto dealloc;
	fer_debugfs_add(dev);
	return 0;
dealloc:
	ib_dealloc_device(&dev->ib);
	return err;
}

static void remove_devices(void)
{
	struct fer_dev *dev;

	for (;;) {
		bool ours = false;

		mutex_lock(&devices_lock);
		dev = list_first_entry_or_null(&devices, struct fer_dev, node);
		if (dev)
			ours = ib_device_try_get(&dev->ib);
		mutex_unlock(&devices_lock);
		if (!dev)
			return;
		if (ours)
			ib_unregister_device_and_put(&dev->ib);
		else
			msleep(20); /* somebody else is taking it away right now */
	}
}

static int __init ferrule_init(void)
{
	unsigned int i;
	int err;

	fer_debugfs_init();
	for (i = 0; i < min(loopback, 8u); i++) {
		err = add_device(&fer_loopback_ops);
		if (err) {
			remove_devices();
			fer_debugfs_exit();
			return err;
		}
	}
	return 0;
}

static void __exit ferrule_exit(void)
{
	remove_devices();
	fer_debugfs_exit();
}

module_init(ferrule_init);
module_exit(ferrule_exit);

MODULE_DESCRIPTION("RDMA verbs over a USB4 cable");
MODULE_AUTHOR("The Ferrule authors");
MODULE_LICENSE("GPL");
#ifdef FER_RELEASE
MODULE_VERSION(__stringify(FER_RELEASE));
#endif
