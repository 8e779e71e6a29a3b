"""What one machine has for talking to others, as it was read: cables, interfaces, RDMA devices and their PCIe links.

All of it is plain data. ``None`` means that the machine does not say, or that what it says makes no sense; the latter
is listed in `Inventory.unreadable`. A field ``path`` is where the thing was found in the tree, so that a finding can
quote what was read there (`Inventory.evidence`). Speeds of cables are in Gbit/s (10^9 bits) and count one direction.
"""

from ferrule.links.types.firewall import Firewall, FirewallChain, FirewallRule, MatchField, RuleMatch, Verdict
from ferrule.links.types.inventory import Evidence, Inventory, Unreadable, inventory_json
from ferrule.links.types.machine import (
    UNLIMITED_BYTES,
    Clock,
    Iommu,
    IommuMode,
    Machine,
    Module,
    Service,
    System,
)
from ferrule.links.types.net import FlowControl, NetAddress, NetCounters, NetDevice, NetKind, NetManager, Route
from ferrule.links.types.pcie import PcieLink, pcie_gb_s
from ferrule.links.types.rdma import Gid, RdmaDevice, RdmaPort
from ferrule.links.types.thunderbolt import (
    NhiRings,
    Retimer,
    ThunderboltDomain,
    ThunderboltPeer,
    ThunderboltPort,
    ThunderboltRouter,
    ThunderboltService,
)

__all__ = [
    "UNLIMITED_BYTES",
    "Clock",
    "Evidence",
    "Firewall",
    "FirewallChain",
    "FirewallRule",
    "FlowControl",
    "Gid",
    "Inventory",
    "Iommu",
    "IommuMode",
    "Machine",
    "MatchField",
    "Module",
    "NetAddress",
    "NetCounters",
    "NetDevice",
    "NetKind",
    "NetManager",
    "NhiRings",
    "PcieLink",
    "RdmaDevice",
    "RdmaPort",
    "Retimer",
    "Route",
    "RuleMatch",
    "Service",
    "System",
    "ThunderboltDomain",
    "ThunderboltPeer",
    "ThunderboltPort",
    "ThunderboltRouter",
    "ThunderboltService",
    "Unreadable",
    "Verdict",
    "inventory_json",
    "pcie_gb_s",
]
