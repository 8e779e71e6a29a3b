"""All that was found on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ferrule.links.types.device import ComputeDevice, DeviceNode, TorchBuild
from ferrule.links.types.firewall import Firewall
from ferrule.links.types.machine import Machine, Service
from ferrule.links.types.net import NetDevice, Route
from ferrule.links.types.pcie import PcieLink
from ferrule.links.types.rdma import RdmaDevice
from ferrule.links.types.thunderbolt import ThunderboltDomain, ThunderboltPeer

Evidence = tuple[str, str]
"""Source of a fact (a path, or ``$ command``) and the line that was read there."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something that is there and could not be understood, or should be there and could not be read."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found on one machine. ``device_nodes``: None where it is not known which there are."""

    machine: Machine
    thunderbolt: tuple[ThunderboltDomain, ...] = ()
    netdevs: tuple[NetDevice, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    pcie: tuple[PcieLink, ...] = ()
    devices: tuple[ComputeDevice, ...] = ()
    device_nodes: tuple[DeviceNode, ...] | None = None
    torch: TorchBuild | None = None
    routes: tuple[Route, ...] = ()
    firewalls: tuple[Firewall, ...] = ()
    services: tuple[Service, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory(Facts):
    """The same with its sources. ``seen``: every path or ``$ command`` that was read, and what stood there."""

    seen: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """Name of the machine in findings."""
        return self.machine.name or self.machine.tree

    @property
    def peers(self) -> tuple[ThunderboltPeer, ...]:
        return tuple(peer for domain in self.thunderbolt for peer in domain.peers)

    def netdev(self, name: str | None) -> NetDevice | None:
        return next((one for one in self.netdevs if one.name == name), None)

    def pcie_link(self, address: str | None) -> PcieLink | None:
        return next((one for one in self.pcie if one.address == address), None)

    @property
    def capable_devices(self) -> tuple[ComputeDevice, ...]:
        """Those that a model is worth computing on: graphics inside an ordinary processor are left out, and all unified
        ones beside a card."""
        cards = tuple(one for one in self.devices if not one.unified)
        return cards or tuple(one for one in self.devices if one.capable)

    def device_node(self, path: str) -> DeviceNode | None:
        return next((one for one in self.device_nodes or () if one.path == path), None)

    def service(self, name: str) -> Service | None:
        return next((one for one in self.services if one.name == name), None)

    def evidence(self, *wheres: str) -> tuple[Evidence, ...]:
        """Evidence from these places, the first line of each; those that were not read are left out."""
        lines = ((where, self.seen[where].strip().splitlines()) for where in wheres if where in self.seen)
        return tuple((where, found[0] if found else "") for where, found in lines)
