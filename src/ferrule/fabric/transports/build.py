"""From connections to a native group: a channel per peer and stream, of the transport that suits the pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferrule import _native
from ferrule.fabric.describe import GroupInfo, PeerInfo, RailInfo
from ferrule.fabric.join.control_channel import Link, endpoint
from ferrule.fabric.join.handshake import Role
from ferrule.fabric.join.hosts import RankHost, oversubscribed
from ferrule.fabric.join.mesh import STREAMS, Live, epoch_number
from ferrule.fabric.join.pending import PendingPeers, Place
from ferrule.fabric.routing.algorithms import Strategy
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.paths import Path
from ferrule.fabric.transports.shm.segment import SharedMemory
from ferrule.fabric.transports.verbs.pairs import Verbs

_SPIN_US = 40.0
_YIELD_US = 20_000.0
"""As long as most stages of a pipeline wait for the others: a core that has slept is slower for milliseconds. Another
process that needs the core gets it at once (native/src/wait/wait.cpp)."""
_STALL_SECONDS = 0.4
"""A rail on which nothing moves for so long while others move is given up: a few times what TCP takes to send a lost
packet again."""


@dataclass(frozen=True)
class Joined:
    """A group that is ready, and what can be told about it."""

    live: Live
    info: GroupInfo


@dataclass
class Parts:
    """What a group is made of. Its sockets, segment and queue pairs become the group's.

    ``members``: the mesh's ranks. ``links``: of every stream and rail to every other rank. ``paths``: how each of
    them is reached, and ``notes``: what is to be said about that. ``measured``: what this rank measured, by rank and
    rail.
    """

    rank: int
    members: tuple[int, ...]
    hosts: Sequence[RankHost]
    pending: PendingPeers
    links: Mapping[Place, Link]
    paths: Mapping[int, Path]
    memory: SharedMemory = field(default_factory=lambda: SharedMemory(None, ()))
    verbs: Verbs = field(default_factory=Verbs)
    notes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    spin_us: float | None = None
    measured: Mapping[int, Mapping[int, Measured]] = field(default_factory=dict)
    strategy: Strategy = field(default_factory=Strategy)
    heartbeat: _native.Heartbeat | None = None

    def build(self) -> Joined:
        here = [host.cpus for host in self.hosts if host.kernel == self.hosts[self.rank].kernel]
        crowded = oversubscribed(here)
        spin_us = self.spin_us
        if spin_us is None:
            spin_us = 0.0 if crowded else _SPIN_US
        remarks = [f"no shared memory: {self.memory.reason}"] if self.memory.reason else []
        remarks += self.verbs.notes
        if crowded:
            remarks.append("more ranks than cores on this machine: waiting yields at once")
        peers = tuple(self._peer(other) for other in range(len(self.hosts)))
        streams = [[self._channel(stream, other) for other in range(len(self.hosts))] for stream in range(len(STREAMS))]
        number = epoch_number(self.pending.epoch)
        native = _native.Group(
            self.rank,
            number,
            streams[0],
            streams[1],
            self.memory.segment,
            list(self.memory.local_index),
            spin_us,
            _YIELD_US,
            self.strategy.native_decisions(),
            list(self.strategy.tree),
            list(self.strategy.ring),
            self.heartbeat,
            list(self.members) if self.heartbeat is not None else [],
        )
        info = GroupInfo(self.rank, len(self.hosts), peers, tuple(remarks), self.strategy)
        return Joined(Live(native, self.members, self.rank, self.pending), info)

    def _transport(self, other: int) -> str:
        if other == self.rank:
            return "self"
        index = self.memory.local_index
        if self.memory.segment is not None and index[self.rank] >= 0 and index[other] >= 0:
            return "shm"
        return "verbs" if other in self.verbs.endpoints else "tcp"

    def _links(self, role: Role, other: int) -> dict[int, Link]:
        """By rail, the first one first."""
        found = ((place.rail, link) for place, link in self.links.items() if place[:2] == (role, other))
        return dict(sorted(found, key=lambda item: item[0]))

    def _channel(self, stream: int, other: int) -> _native.Channel | None:
        transport = self._transport(other)
        if transport == "self":
            return None
        ends, number = (self.rank, other), epoch_number(self.pending.epoch)
        links = self._links(STREAMS[stream], other)
        rails = self.paths[other].rails
        if transport == "tcp" and len(rails) > 1:
            fds = [links[rail.number].socket.detach() if rail.number in links else -1 for rail in rails]
            return _native.Channel.rails(*ends, number, fds, self._best(other), _STALL_SECONDS)
        first, *others = links.values()
        for link in others:
            link.socket.close()
        fd = first.socket.detach()
        if transport == "shm":
            assert self.memory.segment is not None
            places = (self.memory.local_index[one] for one in ends)
            return _native.Channel.shm(*ends, fd, number, self.memory.segment, stream, *places)
        if transport == "verbs":
            return _native.Channel.verbs(*ends, fd, number, self.verbs.endpoints[other][stream])
        return _native.Channel.tcp(*ends, fd, number)

    def _best(self, other: int) -> int:
        """The place of the rail for small messages among the rails to a rank."""
        measured = self.measured.get(other, {})
        alphas = [
            measured[rail.number].alpha if rail.number in measured else math.inf for rail in self.paths[other].rails
        ]
        return alphas.index(min(alphas))

    def _peer(self, other: int) -> PeerInfo:
        host, transport = self.hosts[other], self._transport(other)
        if transport == "self":
            return PeerInfo(other, host.host, host.pid, transport, "-")
        path = self.paths[other]
        rails = tuple(
            _rail_info(number, link, path, self.measured.get(other, {}).get(number), up=other > self.rank)
            for number, link in self._links(STREAMS[0], other).items()
            if transport == "tcp"
        )
        text = "tcp " + " + ".join(map(str, rails))
        if path.via:
            text = "tcp via " + ", ".join(f"rank {rank}" for rank in path.via)
        texts = {"shm": "shared memory", "verbs": self.verbs.texts.get(other, "")}
        notes = tuple(self.notes.get(other, ()))
        return PeerInfo(other, host.host, host.pid, transport, texts.get(transport, text), rails, path.via, notes)


def _rail_info(number: int, link: Link, path: Path, measured: Measured | None, *, up: bool) -> RailInfo:
    interface = next((rail.interface for rail in path.rails if rail.number == number), "")
    here, there = link.socket.getsockname(), link.socket.getpeername()
    info = RailInfo(number, interface, endpoint(here[:2]), endpoint(there[:2]))
    if measured is None:
        return info
    bandwidth = 1 / (measured.up if up else measured.down)
    return replace(info, latency=measured.alpha, bandwidth=bandwidth, measured_at=measured.at, sockets=measured.sockets)
