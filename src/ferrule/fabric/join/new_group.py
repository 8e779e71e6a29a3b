"""State of a group that is being made, for all its steps on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ferrule.fabric.join.control_channel import Deadline
from ferrule.fabric.join.coordinator import Coordinator
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.mesh import STREAMS, Mesh
from ferrule.fabric.join.pending import PendingPeers
from ferrule.fabric.routing.paths import Path, Rail, candidates


@dataclass(frozen=True)
class NewGroup:
    """``members``: ranks of the mesh in the order of the new group, whose ranks all else here counts in.

    ``pending``: where connections of higher ranks arrive. ``transport``: overrides the hosts' choice. ``first``: it is
    the mesh's first group, which tries all paths there may be, remembers in the mesh which work, and watches them by a
    heartbeat.
    """

    mesh: Mesh
    members: tuple[int, ...]
    coordinator: Coordinator
    pending: PendingPeers
    transport: str | None = None
    first: bool = False

    @cached_property
    def hosts(self) -> tuple[RankHost, ...]:
        hosts = [self.mesh.hosts[member] for member in self.members]
        return tuple(host if self.transport is None else replace(host, transport=self.transport) for host in hosts)

    @property
    def rank(self) -> int:
        return self.members.index(self.mesh.rank)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def deadline(self) -> Deadline:
        return self.coordinator.deadline

    @property
    def roles(self) -> tuple[Role, ...]:
        """Of the connections to each other rank."""
        return (*STREAMS, Role.CONTROL) if self.first else STREAMS

    @property
    def sockets(self) -> int:
        """Sockets per interface that the hosts are told to have, the least of all; 0: as many as measure faster."""
        return min((host.sockets for host in self.hosts if host.sockets), default=0)

    def identity(self, role: Role, target: int, rail: int) -> Identity:
        return Identity(role, self.rank, target, self.size, self.pending.epoch, rail)

    def candidates(self, other: int, sockets: int | None = None) -> tuple[Rail, ...]:
        """The rails that there may be to a rank."""
        count = (self.sockets or 1) if sockets is None else sockets
        return candidates(self.rank, self.hosts[self.rank], other, self.hosts[other], count)

    def paths(self) -> Mapping[int, Path]:
        return {other: self.mesh.path_to(member) for other, member in enumerate(self.members) if other != self.rank}
