"""The transport of ranks that share memory: one segment per host, which its ranks agree on or do without."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence

from msgspec import Raw, Struct, json

from ferrule import _native
from ferrule.errors import RendezvousError
from ferrule.fabric.describe import RailInfo
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.transports.protocol import PeerConnections, Session, SharedMemory, Transport

_NAME = "shm"
_TYPICAL = Measured(1e-6, 1e-10, 1e-10)
"""Not measured, which would take the group that is being made."""


class SegmentOffer(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Of the rank that creates the segment: where it is, or why there is none."""

    place: str = ""
    token: bytes = b""
    reason: str = ""


class ShmSession(Session):
    """The ranks that look as if they could share memory try it.

    The lowest of them creates the segment, the others open it, which proves that it really is the same memory. On
    Linux it never has a name: a rank that dies, whenever it does, leaves nothing behind. It is all or none; a partial
    success is given up.
    """

    name = _NAME
    typical = _TYPICAL

    def __init__(self, rank: int, hosts: Sequence[RankHost]) -> None:
        self._rank = rank
        self._size = len(hosts)
        self._required = hosts[rank].transport == _NAME
        members = [other for other, host in enumerate(hosts) if host.memory_id == hosts[rank].memory_id]
        self._members: Sequence[int] = members if len(members) > 1 else ()
        self._segment: _native.Segment | None = None
        self.peers: Collection[int] = [other for other in self._members if other != rank]

    def offer(self) -> Struct | None:
        if self._rank not in self._members[:1]:
            return None
        token = secrets.token_bytes(16)
        try:
            self._segment = _native.Segment.create(token, len(self._members))
        except OSError as error:
            return SegmentOffer(reason=str(error))
        return SegmentOffer(self._segment.place, token)

    def connect(
        self, offers: Sequence[Raw | None], channels: Mapping[int, ControlChannel], joined: Collection[int]
    ) -> str:
        if not set(self.peers).isdisjoint(joined):
            self.close()
            self.peers = self._members = ()
        if not self._members or self._segment is not None:
            return ""
        offer = json.decode(offers[self._members[0]] or b"{}", type=SegmentOffer)
        if offer.reason:
            return offer.reason
        try:
            self._segment = _native.Segment.open(offer.place, offer.token, len(self._members))
        except OSError as error:
            return str(error)
        return ""

    def settle(self, reasons: Sequence[str]) -> None:
        """Raises `RendezvousError` when this transport was asked for and there are ranks that it does not join."""
        if self._segment is not None:
            self._segment.hide()
        reason = reasons[self._members[0]] if self._members else ""
        for rank in self._members[1:]:
            reason = reason or (f"rank {rank}: {reasons[rank]}" if reasons[rank] else "")
        if reason:
            self.close()
        others = [str(rank) for rank in range(self._size) if rank not in (self._rank, *self._members)]
        if self._required and (reason or others):
            why = reason or f"rank {', '.join(others)} runs where memory cannot be shared"
            raise RendezvousError(
                f"shared memory was asked for but is not to be had: {why}; "
                "let the ranks see each other's processes (docker: --pid=host), or set FERRULE_TRANSPORT=auto"
            )
        if self._segment is None:
            self.peers = ()
            self.notes = (f"no shared memory: {reason}",) if reason else ()
        else:
            index = {member: place for place, member in enumerate(self._members)}
            self.memory = SharedMemory(self._segment, tuple(index.get(rank, -1) for rank in range(self._size)))

    def channel(self, stream: int, to: PeerConnections) -> _native.Channel:
        assert self.memory is not None
        mine, theirs = (self.memory.local_index[one] for one in (to.rank, to.peer))
        fd = to.take_one(stream)
        return _native.Channel.shm(to.rank, to.peer, fd, to.epoch, self.memory.segment, stream, mine, theirs)

    def describe(self, to: PeerConnections) -> tuple[str, tuple[RailInfo, ...]]:
        return "shared memory", ()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


class ShmTransport(Transport):
    name = _NAME
    typical: Measured | None = _TYPICAL

    def expected(self, one: RankHost, other: RankHost) -> bool:
        return one.memory_id == other.memory_id and one.transport in ("auto", _NAME)

    def session(self, rank: int, hosts: Sequence[RankHost], deadline: Deadline) -> Session:
        return ShmSession(rank, hosts)
