"""Description of a group's connections, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ferrule.fabric.routing.algorithms import Strategy
from ferrule.units import format_seconds


@dataclass(frozen=True)
class RailInfo:
    """One path to a peer. ``local``, ``remote``: host:port of its ends. ``interface``: empty where the system chose."""

    number: int
    interface: str
    local: str
    remote: str
    latency: float | None = None
    """Seconds that a small message takes one way, where this rank measured it."""
    bandwidth: float | None = None
    """Bytes per second that this rank can send, where it measured that."""
    measured_at: float | None = None
    """Time of that measurement, in seconds since 1970; None: at this start."""
    sockets: int = 1
    """Number of sockets over the same interfaces, for each stream, where two measured faster than one."""

    def __str__(self) -> str:
        more = f" × {self.sockets} sockets" if self.sockets > 1 else ""
        return f"{self.remote} ({self.interface}){more}" if self.interface else self.remote

    @property
    def measured(self) -> str:
        """For people; empty where nothing was measured."""
        if self.latency is None or self.bandwidth is None:
            return ""
        earlier = self.measured_at
        when = "at this start" if earlier is None else f"{datetime.fromtimestamp(earlier):%Y-%m-%d %H:%M}"
        return f"{format_seconds(self.latency)}, {self.bandwidth * 8 / 1e9:.3g} Gb/s (measured {when})"


@dataclass(frozen=True)
class PeerInfo:
    """One rank as seen from this one. ``transport``: its name, or self; ``path``: the one that data take to it.

    ``rails``: its connections, none over shared memory. ``via``: the ranks between, the nearest first, where
    the two share no link. ``notes``: which other paths there might have been, and why they are not used.
    """

    rank: int
    host: str
    pid: int
    transport: str
    path: str
    rails: tuple[RailInfo, ...] = ()
    via: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupInfo:
    rank: int
    size: int
    peers: tuple[PeerInfo, ...]
    notes: tuple[str, ...] = ()
    """Notes on what came out differently than one might expect, and why."""
    strategy: Strategy = field(default_factory=Strategy)
    """Algorithm by message size, decided from what the links cost; print it."""

    @property
    def transports(self) -> str:
        """The transports in use, such as ``"shm"`` or ``"shm+tcp"``; ``"self"`` for a group of one."""
        used = sorted({peer.transport for peer in self.peers if peer.transport != "self"})
        return "+".join(used) or "self"

    def __str__(self) -> str:
        lines = [f"rank {self.rank} of {self.size}"]
        for peer in self.peers:
            if peer.rank != self.rank:
                lines.append(f"  rank {peer.rank} on {peer.host} (pid {peer.pid}): {peer.path}")
                lines += [f"    {rail}: {measured}" for rail in peer.rails if (measured := rail.measured)]
                lines += [f"    note: {note}" for note in peer.notes]
        if self.strategy.decisions:
            lines += [f"  {line}" for line in str(self.strategy).splitlines()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
