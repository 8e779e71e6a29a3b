"""What all groups of one job share on this rank: the door, the ways to the other ranks, and who they are."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ferrule import _native
from ferrule.errors import RendezvousError
from ferrule.fabric.costs import LinkCosts
from ferrule.fabric.dial import Call
from ferrule.fabric.door import Door
from ferrule.fabric.handshake import Identity, Role
from ferrule.fabric.hosts import RankHost
from ferrule.fabric.link import Link
from ferrule.fabric.lobby import Lobby
from ferrule.fabric.ways import Rail, Way

LANES = (Role.COLLECTIVES, Role.MESSAGES)
"""The lanes of a group in the order of the native core's numbers."""


@dataclass(frozen=True)
class Live:
    """A group of this mesh that is not closed. ``members``: the mesh's rank of each of its ranks."""

    native: _native.Group
    members: tuple[int, ...]
    rank: int
    lobby: Lobby


@dataclass
class Mesh:
    """Made by the rendezvous (or by `Group.reform`); numbers ranks as the group did that it made.

    ``epoch`` names that group, ``key`` is the cluster's. ``calibrate``: whether to measure the links; ``costs``: what
    came of it. ``ways``: how this rank gets to each other one. ``routes``: for two ranks that share no link, the ranks
    that a message passes from the higher one to the lower one. ``closers``: what else to do when the last group is
    closed.
    """

    rank: int
    hosts: tuple[RankHost, ...]
    epoch: bytes
    key: bytes
    door: Door
    spin_us: float | None
    calibrate: bool = False
    costs: LinkCosts | None = None
    ways: dict[int, Way] = field(default_factory=dict)
    routes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    closers: list[Callable[[], None]] = field(default_factory=list)
    _live: dict[bytes, Live] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def size(self) -> int:
        return len(self.hosts)

    def call(self, rail: Rail, identity: Identity) -> Call:
        """How to make a connection over a direct rail."""
        return Call(rail.address, identity, rail.source, rail.interface)

    def calls(self, peer: int, identities: Sequence[Identity]) -> list[Call]:
        """How to make these connections to ``peer`` (a rank of the mesh) the way that is known to work.

        An identity's rail picks the rail; where there is none of that number, the first.
        """
        way = self.ways[peer]
        if way.rails:
            by_number = {rail.number: rail for rail in way.rails}
            return [self.call(by_number.get(who.rail, way.rails[0]), who) for who in identities]
        next_hop = self.ways[way.via[0]].rails
        if not next_hop:
            raise RendezvousError(f"rank {way.via[0]}, by which rank {peer} would be reached, is no neighbour")
        request = Identity(Role.RELAY, self.rank, peer, self.size, self.epoch)
        rail = next_hop[0]
        return [Call(rail.address, who, rail.source, rail.interface, request) for who in identities]

    def enter(self, live: Live) -> None:
        """One more group uses this. From now on rails that return are its."""
        with self._lock:
            self._live[live.lobby.epoch] = live
        for role in LANES:
            live.lobby.handle(role, self.take_back)

    def leave(self, epoch: bytes) -> None:
        """A group is closed; with the last one nobody listens any more."""
        with self._lock:
            live = self._live.pop(epoch, None)
            last = not self._live
        if live is not None:
            self.door.shut(live.lobby, "this group is closed")
        if last:
            self.door.close()
            for close in self.closers:
                close()

    def live(self) -> list[Live]:
        with self._lock:
            return list(self._live.values())

    def take_back(self, link: Link) -> None:
        """A lane's connection in the place of a rail that was lost, made by either end."""
        with self._lock:
            live = self._live.get(link.identity.epoch)
        who = link.identity
        numbers = [rail.number for rail in self.ways[live.members[link.peer]].rails] if live else []
        if live is None or who.rail not in numbers:
            link.socket.close()
            return
        fd = link.socket.detach()
        if live.native.add_rail(LANES.index(who.role), link.peer, numbers.index(who.rail), fd) != 0:
            os.close(fd)  # the group has just been closed
