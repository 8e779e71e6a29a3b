// SPDX-License-Identifier: GPL-2.0
/*
 * The anchor of a device's addresses: a network interface that carries nothing. The RDMA
 * core derives the GIDs from its addresses, as it does for any RoCE device.
 */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>

#include "ferrule_rdma.h"

static netdev_tx_t xmit(struct sk_buff *skb, struct net_device *netdev)
{
	dev_kfree_skb(skb);
	dev_core_stats_tx_dropped_inc(netdev);
	return NETDEV_TX_OK;
}

static const struct net_device_ops ops = {
	.ndo_start_xmit = xmit,
	.ndo_set_mac_address = eth_mac_addr,
};

static void setup(struct net_device *netdev)
{
	ether_setup(netdev);
	netdev->netdev_ops = &ops;
	netdev->flags |= IFF_NOARP;
	netdev->flags &= ~IFF_MULTICAST;
	netdev->needs_free_netdev = false;
}

static struct net_device *create(const char *name, const u8 *mac)
{
	struct net_device *netdev = alloc_netdev(0, name, NET_NAME_PREDICTABLE, setup);
	int err;

	if (!netdev)
		return ERR_PTR(-ENOMEM);
	if (mac)
		eth_hw_addr_set(netdev, mac);
	else
		eth_hw_addr_random(netdev);
	netif_carrier_off(netdev);
	err = register_netdev(netdev);
	if (err) {
		free_netdev(netdev);
		return ERR_PTR(err);
	}
	return netdev;
}

/* mac: NULL for any */
struct net_device *fer_netdev_create(const char *name, const u8 *mac)
{
	struct net_device *netdev = create(name, mac);

	return netdev == ERR_PTR(-EEXIST) || netdev == ERR_PTR(-EINVAL) ?
	       create("frl%d", mac) : netdev;
}

void fer_netdev_destroy(struct net_device *netdev)
{
	unregister_netdev(netdev);
	free_netdev(netdev);
}
