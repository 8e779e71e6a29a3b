// SPDX-License-Identifier: GPL-2.0
/* HopIDs and paths: which ring's frames arrive at which ring. */
#include <linux/module.h>

#include "mock.h"

static int alloc_hopid(struct ida *ids, int hopid, int most)
{
	if (hopid < 0)
		return ida_alloc_range(ids, MOCK_MIN_HOPID, most, GFP_KERNEL);
	if (hopid < MOCK_MIN_HOPID || hopid > most)
		return -EINVAL;
	return ida_alloc_range(ids, hopid, most, GFP_KERNEL);
}

int tb_xdomain_alloc_in_hopid(struct tb_xdomain *xd, int hopid)
{
	return alloc_hopid(&xd->in_hopids, hopid, xd->local_max_hopid);
}
EXPORT_SYMBOL_GPL(tb_xdomain_alloc_in_hopid);

int tb_xdomain_alloc_out_hopid(struct tb_xdomain *xd, int hopid)
{
	return alloc_hopid(&xd->out_hopids, hopid, xd->remote_max_hopid);
}
EXPORT_SYMBOL_GPL(tb_xdomain_alloc_out_hopid);

void tb_xdomain_release_in_hopid(struct tb_xdomain *xd, int hopid)
{
	ida_free(&xd->in_hopids, hopid);
}
EXPORT_SYMBOL_GPL(tb_xdomain_release_in_hopid);

void tb_xdomain_release_out_hopid(struct tb_xdomain *xd, int hopid)
{
	ida_free(&xd->out_hopids, hopid);
}
EXPORT_SYMBOL_GPL(tb_xdomain_release_out_hopid);

int tb_xdomain_enable_paths(struct tb_xdomain *xd, int transmit_path, int transmit_ring,
			    int receive_path, int receive_ring)
{
	struct mock_side *side = mock_xd_side(xd);
	int i, ret = -ENOSPC;

	mutex_lock(&mock_wire_lock);
	for (i = 0; i < MOCK_PATHS && ret; i++) {
		if (side->paths[i].on)
			continue;
		side->paths[i] = (struct mock_path) {
			.on = true,
			.tx_path = transmit_path,
			.tx_ring = transmit_ring,
			.rx_path = receive_path,
			.rx_ring = receive_ring,
		};
		ret = 0;
	}
	mutex_unlock(&mock_wire_lock);
	mock_kick(side);
	mock_kick(side->peer);
	return ret;
}
EXPORT_SYMBOL_GPL(tb_xdomain_enable_paths);

static bool is_or_any(int wanted, int value)
{
	return wanted < 0 || wanted == value;
}

int tb_xdomain_disable_paths(struct tb_xdomain *xd, int transmit_path, int transmit_ring,
			     int receive_path, int receive_ring)
{
	struct mock_side *side = mock_xd_side(xd);
	struct mock_path *path;

	mutex_lock(&mock_wire_lock);
	for (path = side->paths; path < side->paths + MOCK_PATHS; path++)
		if (is_or_any(transmit_path, path->tx_path) &&
		    is_or_any(transmit_ring, path->tx_ring) &&
		    is_or_any(receive_path, path->rx_path) &&
		    is_or_any(receive_ring, path->rx_ring))
			path->on = false;
	mutex_unlock(&mock_wire_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(tb_xdomain_disable_paths);

/* The link has the lanes that it has. */
int tb_xdomain_lane_bonding_enable(struct tb_xdomain *xd)
{
	return 0;
}
EXPORT_SYMBOL_GPL(tb_xdomain_lane_bonding_enable);

void tb_xdomain_lane_bonding_disable(struct tb_xdomain *xd)
{
}
EXPORT_SYMBOL_GPL(tb_xdomain_lane_bonding_disable);
