"""Emulated hardware: what is claimed about cables, kernels and faults is checked here, on one machine.

Hosts and cables are here; virtual machines with kernels of their own in `ferrule.lab.vm`.
"""

from ferrule.hardware import CableSpec, Shaping, Topology, chain, edges, mesh, pair, parse_changes, ring, star, switch
from ferrule.lab.netns.cable import Cable, CableState
from ferrule.lab.netns.lab import ROUTED, Lab, obstacle

__all__ = [
    "ROUTED",
    "Cable",
    "CableSpec",
    "CableState",
    "Lab",
    "Shaping",
    "Topology",
    "chain",
    "edges",
    "mesh",
    "obstacle",
    "pair",
    "parse_changes",
    "ring",
    "star",
    "switch",
]
