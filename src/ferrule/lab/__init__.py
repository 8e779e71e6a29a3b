"""Emulated hardware: what is claimed about cables, kernels and faults is checked here, on one machine.

Hosts and cables are here; virtual machines with kernels of their own in `ferrule.lab.vm`.
"""

from ferrule.lab.netns.cable import Cable, CableState
from ferrule.lab.netns.lab import ROUTED, Lab, obstacle
from ferrule.lab.netns.shaping import Shaping, parse_changes
from ferrule.lab.profile import CableProfile, Figure, LabProfile, Machine, Profiles, find_lab, shipped
from ferrule.lab.topology import CableSpec, Topology, chain, edges, mesh, pair, ring, star, switch

__all__ = [
    "ROUTED",
    "Cable",
    "CableProfile",
    "CableSpec",
    "CableState",
    "Figure",
    "Lab",
    "LabProfile",
    "Machine",
    "Profiles",
    "Shaping",
    "Topology",
    "chain",
    "edges",
    "find_lab",
    "mesh",
    "obstacle",
    "pair",
    "parse_changes",
    "ring",
    "shipped",
    "star",
    "switch",
]
