"""The transport of ranks that share an RDMA link and no memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Raw

from ferrule import _native
from ferrule.config import environment, verbs_settings
from ferrule.errors import RendezvousError
from ferrule.fabric.describe import RailInfo
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.transports.protocol import PeerConnections, Session, Transport
from ferrule.fabric.transports.verbs.pairs import Pair, close
from ferrule.fabric.transports.verbs.ports import find_ports

_NAME = "verbs"
_TYPICAL = Measured(4e-6, 3e-10, 3e-10)
"""Not measured, which would take the group that is being made."""


class VerbsSession(Session):
    """Pairs agree one after the other, in an order (of the lower, then of the higher rank) in which waits cannot form a
    circle. Unless this transport was asked for, a pair without a working path does without, and a note says why where
    it looks as if there were one.
    """

    name = _NAME
    typical = _TYPICAL

    def __init__(self, rank: int, hosts: Sequence[RankHost], deadline: Deadline) -> None:
        self._rank = rank
        self._required = hosts[rank].transport == _NAME
        self._deadline = deadline
        self._pairs: dict[int, Pair] = {}
        self.peers: Collection[int] = self._pairs.keys()

    def connect(
        self, offers: Sequence[Raw | None], channels: Mapping[int, ControlChannel], joined: Collection[int]
    ) -> str:
        # An adapter would move bytes that no program has encrypted.
        others = [other for other in sorted(channels.keys() - set(joined)) if not channels[other].session.encrypt]
        if not others:
            return ""
        settings, notes = verbs_settings(environment()), []
        found = find_ports(settings, software=self._required)
        for other in others:
            pair = Pair(self._rank, other, channels[other], self._deadline)
            reason = pair.connect(found, settings)
            if pair.endpoints:
                self._pairs[other] = pair
            elif self._required:
                raise RendezvousError(
                    f"RDMA was asked for, but ranks {min(self._rank, other)} and {max(self._rank, other)} have none: "
                    f"{reason}; `ferrule driver check` on both hosts says what is missing, or set "
                    "FERRULE_TRANSPORT=auto"
                )
            elif pair.promising:
                notes.append(f"no RDMA to rank {other}: {reason}")
        self.notes = notes
        return ""

    def channel(self, stream: int, to: PeerConnections) -> _native.Channel:
        endpoint = self._pairs[to.peer].endpoints[stream]
        return _native.Channel.verbs(to.rank, to.peer, to.take_one(stream), to.epoch, endpoint)

    def describe(self, to: PeerConnections) -> tuple[str, tuple[RailInfo, ...]]:
        return self._pairs[to.peer].text, ()

    def close(self) -> None:
        for pair in self._pairs.values():
            close(pair.endpoints)


class VerbsTransport(Transport):
    name = _NAME
    typical: Measured | None = _TYPICAL

    def expected(self, one: RankHost, other: RankHost) -> bool:
        return False  # only trying tells

    def session(self, rank: int, hosts: Sequence[RankHost], deadline: Deadline) -> Session:
        return VerbsSession(rank, hosts, deadline)
