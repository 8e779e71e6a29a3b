// SPDX-License-Identifier: GPL-2.0
/* The cable: plugged in or not, how it trained; and the module's beginning and end. */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "mock.h"

struct mock_side *mock_sides[2];
struct workqueue_struct *mock_wq;
DEFINE_MUTEX(mock_cable_lock);
bool mock_plugged;
static struct pci_dev *dma_device;

static unsigned int lanes = 2;
module_param(lanes, uint, 0644);
MODULE_PARM_DESC(lanes, "lanes of the link, 1 or 2, from the next plugging in on");
static unsigned int gbps = 20;
module_param(gbps, uint, 0644);
MODULE_PARM_DESC(gbps, "Gb/s of each lane, 10 or 20, from the next plugging in on");

static struct tb_xdomain *xdomain_new(struct mock_side *side)
{
	struct tb_xdomain *xd = kzalloc(sizeof(*xd), GFP_KERNEL);

	if (!xd)
		return NULL;
	xd->tb = &side->tb;
	xd->local_uuid = &side->uuid;
	xd->remote_uuid = &side->peer->uuid;
	xd->route = 1;
	xd->link = 1;
	xd->link_speed = gbps;
	xd->link_width = lanes;
	xd->link_usb4 = true;
	xd->local_max_hopid = MOCK_MAX_HOPID;
	xd->remote_max_hopid = MOCK_MAX_HOPID;
	xd->vendor_name = "mock";
	xd->device_name = side->index ? "host-0" : "host-1";
	mutex_init(&xd->lock);
	ida_init(&xd->service_ids);
	ida_init(&xd->in_hopids);
	ida_init(&xd->out_hopids);
	xd->dev.bus = &mock_bus_type;
	xd->dev.type = &tb_xdomain_type;
	xd->dev.parent = &dma_device->dev;
	dev_set_name(&xd->dev, "%d-1", side->index);
	return xd;
}

static int plug(void)
{
	struct tb_xdomain *xds[2];
	int i, ret;

	for (i = 0; i < 2; i++) {
		xds[i] = xdomain_new(mock_sides[i]);
		if (!xds[i]) {
			if (i)
				kfree(xds[0]);
			return -ENOMEM;
		}
		mock_sides[i]->xd = xds[i];
	}
	for (i = 0; i < 2; i++) {
		ret = device_register(&xds[i]->dev);
		if (ret) {
			put_device(&xds[i]->dev);
			if (i)
				device_unregister(&xds[0]->dev);
			else
				kfree(xds[1]);
			return ret;
		}
	}
	mock_plugged = true;
	for (i = 0; i < 2; i++)
		mock_services_add(mock_sides[i]);
	return 0;
}

static void unplug(void)
{
	int i;

	mock_plugged = false;
	for (i = 0; i < 2; i++)
		mock_sides[i]->xd->is_unplugged = true;
	for (i = 0; i < 2; i++)
		mock_wire_clear(mock_sides[i]);
	for (i = 0; i < 2; i++)
		mock_services_remove(mock_sides[i], NULL);
	flush_workqueue(mock_wq);
	for (i = 0; i < 2; i++) {
		mock_wire_clear(mock_sides[i]);
		device_unregister(&mock_sides[i]->xd->dev);
	}
}

static int set_plugged(const char *value, const struct kernel_param *param)
{
	bool wanted;
	int ret = kstrtobool(value, &wanted);

	if (ret)
		return ret;
	if (!mock_wq)	/* on the command line, before mock_init() */
		return -EINVAL;
	mutex_lock(&mock_cable_lock);
	if (wanted && !mock_plugged)
		ret = plug();
	else if (!wanted && mock_plugged)
		unplug();
	mutex_unlock(&mock_cable_lock);
	return ret;
}

static const struct kernel_param_ops plugged_ops = {
	.set = set_plugged,
	.get = param_get_bool,
};
module_param_cb(plugged, &plugged_ops, &mock_plugged, 0644);
MODULE_PARM_DESC(plugged, "write 0 to pull the cable out at both ends, 1 to plug it in again");

static struct mock_side *side_new(int index)
{
	struct mock_side *side = kzalloc(sizeof(*side), GFP_KERNEL);

	if (!side)
		return NULL;
	side->index = index;
	uuid_gen(&side->uuid);
	mutex_init(&side->tb.lock);
	side->tb.nhi = &side->nhi;
	side->tb.index = index;
	side->tb.dev.parent = &dma_device->dev;
	spin_lock_init(&side->nhi.lock);
#if SINCE(7, 2)
	side->nhi.dev = &dma_device->dev;
#else
	side->nhi.pdev = dma_device;
#endif
	side->nhi.hop_count = MOCK_HOPS;
	ida_init(&side->tx_hops);
	ida_init(&side->rx_hops);
	INIT_LIST_HEAD(&side->services);
	mock_control_init(side);
	mock_wire_init(side);
	return side;
}

static void free_all(void)
{
	int i;

	for (i = 0; i < 2; i++)
		if (mock_sides[i])
			mock_wire_exit(mock_sides[i]);
	if (mock_wq)
		destroy_workqueue(mock_wq);
	for (i = 0; i < 2; i++)
		kfree(mock_sides[i]);
	pci_dev_put(dma_device);
}

static int __init mock_init(void)
{
	int ret = -ENOMEM;

	/* Drivers map their buffers for a device; without an IOMMU any one will do. */
	dma_device = pci_get_device(PCI_ANY_ID, PCI_ANY_ID, NULL);
	if (!dma_device)
		return -ENODEV;
	mock_sides[0] = side_new(0);
	mock_sides[1] = side_new(1);
	mock_wq = alloc_workqueue("mock_tb", WQ_UNBOUND | WQ_HIGHPRI | WQ_MEM_RECLAIM, 0);
	if (!mock_sides[0] || !mock_sides[1] || !mock_wq)
		goto fail;
	mock_sides[0]->peer = mock_sides[1];
	mock_sides[1]->peer = mock_sides[0];
	ret = bus_register(&mock_bus_type);
	if (ret)
		goto fail;
	mutex_lock(&mock_cable_lock);
	ret = plug();
	mutex_unlock(&mock_cable_lock);
	if (!ret)
		return 0;
	bus_unregister(&mock_bus_type);
fail:
	free_all();
	return ret;
}

static void __exit mock_exit(void)
{
	mutex_lock(&mock_cable_lock);
	if (mock_plugged)
		unplug();
	mutex_unlock(&mock_cable_lock);
	bus_unregister(&mock_bus_type);
	free_all();
}

module_init(mock_init);
module_exit(mock_exit);
MODULE_DESCRIPTION("A stand-in for thunderbolt.ko: two hosts and a virtual cable in one kernel");
MODULE_LICENSE("GPL");
