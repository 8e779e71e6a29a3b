"""Inventory types of one machine, as it was read: cables, interfaces, RDMA devices and their PCIe links.

All of it is plain data. ``None`` means that the machine does not say, or that what it says makes no sense; the latter
is listed in `Inventory.unreadable`. A field ``path`` is where the thing was found in the tree, so that a finding can
quote what was read there (`Inventory.evidence`). Speeds of cables are in Gbit/s (10^9 bits) and count one direction.
"""
