"""Mesh: state that all groups of one job share on this rank: acceptor, other ranks, and the paths to them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferrule import _native
from ferrule.config import Calibration
from ferrule.errors import RendezvousError
from ferrule.fabric.join.acceptor import Acceptor
from ferrule.fabric.join.control_channel import ControlChannel
from ferrule.fabric.join.dial import Call
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.pending import PendingPeers
from ferrule.fabric.routing.costs import PairCosts
from ferrule.fabric.routing.paths import Path, Rail
from ferrule.fabric.routing.routes import Pair, find_routes
from ferrule.secure.token import write_address

STREAMS = (Role.COLLECTIVES, Role.MESSAGES)
"""The streams of a group in the order of the native core's numbers."""

MAX_WATCHED_RAILS = 64
"""Number of connections to one peer that the native heartbeat takes."""
_BEATS = 8
"""Beats that must be missed before a rank is lost: the network may drop a few."""
_RELAXED_SECONDS = 1.0
"""Between beats when silence is no fault."""


@dataclass(frozen=True)
class Live:
    """A group of this mesh that is not closed. ``members``: the mesh's rank of each of its ranks."""

    native: _native.Group
    members: tuple[int, ...]
    rank: int
    pending: PendingPeers


@dataclass
class Mesh:
    """Made by the rendezvous; numbers ranks as the group did that it made. Groups made by split and reform share it.

    ``epoch`` names that group, ``key`` is the cluster's. ``calibrate``: which links to measure; ``costs``: what
    came of it. ``encrypt``: what goes over cables. ``silence``: seconds after which a silent rank is lost (0: never);
    ``heartbeat``: knows which ranks are there (None in a job of one), and ends the groups of those that are not.
    ``paths``: how this rank gets to each other one. ``routes``: for any two ranks that share no link, the ranks that
    a message passes from the higher one to the lower one. ``closers``: what else to do when the last group is closed.
    """

    rank: int
    hosts: tuple[RankHost, ...]
    epoch: bytes
    key: bytes
    acceptor: Acceptor
    spin_us: float | None
    calibrate: Calibration = "never"
    silence: float = 0.0
    encrypt: bool = False
    costs: PairCosts | None = None
    heartbeat: _native.Heartbeat | None = None
    paths: dict[int, Path] = field(default_factory=dict)
    routes: dict[Pair, tuple[int, ...]] = field(default_factory=dict)
    closers: list[Callable[[], None]] = field(default_factory=list)
    _detours: tuple[frozenset[int], Mapping[Pair, tuple[int, ...]]] = field(default=(frozenset(), {}))
    _live: dict[bytes, Live] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def size(self) -> int:
        return len(self.hosts)

    def call(self, rail: Rail, identity: Identity) -> Call:
        """Call that makes a connection over a direct rail."""
        return Call(rail.address, identity, rail.source, rail.interface, encrypt=self.encrypt)

    def calls(self, peer: int, identities: Sequence[Identity]) -> list[Call]:
        """Calls that make these connections to ``peer`` (a rank of the mesh) over the path that is known to work.

        An identity's rail picks the rail, if it is of a stream or the heartbeat; all else goes over one that is well.
        """
        path = self.path_to(peer)
        if path.rails:
            beats = self.heartbeat.rails(peer) if self.heartbeat is not None else []
            well = next((rail for rail, alive in zip(path.rails, beats, strict=False) if alive), path.rails[0])
            by_number = {(role, rail.number): rail for role in (*STREAMS, Role.CONTROL) for rail in path.rails}
            return [self.call(by_number.get((who.role, who.rail), well), who) for who in identities]
        if not path.via:
            raise RendezvousError(f"no links lead to rank {peer} any more")
        request = Identity(Role.RELAY, self.rank, peer, self.size, self.epoch)
        rail = self.paths[path.via[0]].rails[0]
        return [replace(self.call(rail, who), request=request, via=path.via) for who in identities]

    def path_to(self, peer: int) -> Path:
        """Path to ``peer`` now; with neither rails nor ranks between, not at all."""
        path = self.paths[peer]
        return path if path.rails else Path((), self.route(self.rank, peer) or ())

    def route(self, source: int, target: int) -> tuple[int, ...] | None:
        """The ranks between two that share no link, from ``source`` on, past those that are gone.

        None for others, before routes are known, and where nothing is left.
        """
        route = self._routes_now().get((max(source, target), min(source, target)))
        return route if route is None or source > target else route[::-1]

    def _routes_now(self) -> Mapping[Pair, tuple[int, ...]]:
        """Every rank works it out alone: they all know the same links and costs, and soon who is gone."""
        gone = self.gone()
        if not any(gone.intersection(route) for route in self.routes.values()):
            return self.routes
        known, routes = self._detours
        if known != gone:
            left = sorted(set(range(self.size)) - gone)
            linked = [pair for pair in itertools.combinations(left, 2) if pair[::-1] not in self.routes]
            routes = find_routes(linked, [host.memory_id for host in self.hosts], self.costs)
            self._detours = gone, routes
        return routes

    def gone(self) -> frozenset[int]:
        """The ranks that are lost, or have left."""
        presences = self.heartbeat.peers() if self.heartbeat is not None else []
        return frozenset(rank for rank, (presence, _) in enumerate(presences) if presence in ("lost", "left"))

    def onward(self, who: Identity) -> list[Call] | None:
        """Calls that pass on a rank which asks for another one: see `ferrule.fabric.routing.relays.Onward`."""
        route = self.route(who.rank, who.target)
        if route is None:
            return None
        if self.rank not in route:
            raise RendezvousError(f"it is not between rank {who.rank} and rank {who.target}")
        after = (*route, who.target)[route.index(self.rank) + 1]
        request = None if after == who.target else who
        return [replace(self.call(rail, who), request=request) for rail in self.paths[after].rails]

    def enter(self, live: Live) -> None:
        """One more group uses this. From now on rails that return are its."""
        with self._lock:
            self._live[live.pending.epoch] = live
        for role in (*STREAMS, Role.CONTROL) if live.pending.epoch == self.epoch else STREAMS:
            live.pending.handle(role, self.take_back)

    def leave(self, epoch: bytes) -> None:
        """A group is closed; with the last one this rank stops listening."""
        with self._lock:
            live = self._live.pop(epoch, None)
            last = not self._live
        if live is not None and epoch != self.epoch:
            self.acceptor.shut(live.pending, "this group is closed")
        elif live is not None:
            live.pending.stop(STREAMS)  # the heartbeat of the groups that are left needs its rails as before
        if last:
            self.acceptor.close()
            for close in self.closers:
                close()

    def live(self) -> list[Live]:
        with self._lock:
            return list(self._live.values())

    def take_back(self, channel: ControlChannel) -> None:
        """A connection in the place of a rail that was lost, made by either end."""
        if channel.identity.role == Role.CONTROL:
            self.watch(channel)
            return
        with self._lock:
            live = self._live.get(channel.identity.epoch)
        who = channel.identity
        numbers = [rail.number for rail in self.paths[live.members[channel.peer]].rails] if live else []
        if live is None or who.rail not in numbers:
            channel.socket.close()
            return
        fd = channel.socket.detach()
        if live.native.add_rail(STREAMS.index(who.role), channel.peer, numbers.index(who.rail), fd) != 0:
            os.close(fd)  # the group has just been closed

    def start_heartbeat(self) -> None:
        """From now on it is noticed which ranks are lost, over the connections that are left to `watch`."""
        limit = self.silence
        interval = limit / _BEATS if limit else _RELAXED_SECONDS
        self.heartbeat = _native.Heartbeat(self.rank, self.size, epoch_number(self.epoch), interval, limit)
        self.closers.append(self.heartbeat.close)

    def watch(self, channel: ControlChannel) -> None:
        """Leave a connection of `Role.CONTROL` to the heartbeat, instead of the one that its rail had before."""
        path = self.path_to(channel.peer)
        places = {rail.number: place for place, rail in enumerate(path.rails)} or {0: 0}
        place = places.get(channel.identity.rail, MAX_WATCHED_RAILS)
        if self.heartbeat is None or place >= MAX_WATCHED_RAILS:
            channel.socket.close()
            return
        name = next((rail.interface for rail in path.rails if rail.number == channel.identity.rail), "")
        name = name or write_address(channel.there)
        self.heartbeat.add(channel.peer, place, channel.socket.detach(), name, path.via[0] if path.via else -1)

    def lost(self, members: Sequence[int]) -> tuple[int, str] | None:
        """The first of ``members`` that is lost: its place among them, and why."""
        known = self.heartbeat.lost() if self.heartbeat is not None else {}
        return next(((place, known[member]) for place, member in enumerate(members) if member in known), None)


def epoch_number(epoch: bytes) -> int:
    """An epoch as the native core knows it."""
    return int.from_bytes(epoch[:8], "little")
