"""Profiles of machines and cables, each figure with its source."""

from ferrule.hardware.files import Profiles, find_lab, shipped
from ferrule.hardware.profiles import CableProfile, Figure, LabProfile, Machine, Usb4Lanes
from ferrule.hardware.shaping import Changes, Shaping, changed, parse_changes
from ferrule.hardware.topology import CableSpec, Topology, chain, edges, mesh, pair, ring, star, switch

__all__ = [
    "CableProfile",
    "CableSpec",
    "Changes",
    "Figure",
    "LabProfile",
    "Machine",
    "Profiles",
    "Shaping",
    "Topology",
    "Usb4Lanes",
    "chain",
    "changed",
    "edges",
    "find_lab",
    "mesh",
    "pair",
    "parse_changes",
    "ring",
    "shipped",
    "star",
    "switch",
]
