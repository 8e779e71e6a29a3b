"""How a group is wired, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerInfo:
    """One rank as seen from this one. ``transport``: self, shm or tcp; ``link``: the path data take to it."""

    rank: int
    host: str
    pid: int
    transport: str
    link: str


@dataclass(frozen=True)
class GroupInfo:
    rank: int
    size: int
    peers: tuple[PeerInfo, ...]
    notes: tuple[str, ...] = ()
    """What came out differently than one might expect, and why."""

    @property
    def transports(self) -> str:
        """The transports in use, such as ``"shm"`` or ``"shm+tcp"``; ``"self"`` for a group of one."""
        used = sorted({peer.transport for peer in self.peers if peer.transport != "self"})
        return "+".join(used) or "self"

    def __str__(self) -> str:
        lines = [f"rank {self.rank} of {self.size}"]
        for peer in self.peers:
            if peer.rank != self.rank:
                lines.append(f"  rank {peer.rank} on {peer.host} (pid {peer.pid}): {peer.link}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
