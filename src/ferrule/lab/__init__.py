"""Emulated hardware: what is claimed about cables, kernels and faults is checked here, on one machine.

Hosts and cables are here; virtual machines with kernels of their own in `ferrule.lab.vm`.
"""

from ferrule.lab.cable import Cable, CableState
from ferrule.lab.lab import ROUTED, Lab, obstacle
from ferrule.lab.topology import CableSpec, Topology, chain, edges, mesh, pair, ring, star, switch

__all__ = [
    "ROUTED",
    "Cable",
    "CableSpec",
    "CableState",
    "Lab",
    "Topology",
    "chain",
    "edges",
    "mesh",
    "obstacle",
    "pair",
    "ring",
    "star",
    "switch",
]
