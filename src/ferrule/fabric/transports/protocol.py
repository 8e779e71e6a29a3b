"""Transport interface: it offers itself, joins pairs of ranks, makes their native channels, and repairs these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Raw, Struct

from ferrule import _native
from ferrule.fabric.describe import RailInfo
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.mesh import Live, Mesh
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.routing.paths import Path


@dataclass(frozen=True)
class SharedMemory:
    """A segment that ranks have mapped, and every rank's place in it (-1: not on it)."""

    segment: _native.Segment
    local_index: tuple[int, ...]


@dataclass(frozen=True)
class PeerConnections:
    """Connections between ``rank`` and ``peer``, for a transport to make a channel of.

    ``streams``: by stream, the authenticated connections by rail, the first rail first. ``measured``: what rails cost,
    where this rank measured them. ``notes``: which other paths there might have been, and why they are not used.
    """

    rank: int
    peer: int
    epoch: int
    streams: tuple[Mapping[int, ControlChannel], ...]
    path: Path
    measured: Mapping[int, Measured]
    notes: tuple[str, ...] = ()

    def take_one(self, stream: int) -> int:
        """The socket of the first rail, for a channel that needs only one. The others are closed."""
        first, *others = self.streams[stream].values()
        for channel in others:
            channel.socket.close()
        return first.socket.detach()


class Session(Protocol):
    """A transport while one group is made: this rank's part.

    In this order: all ranks `offer`, all `connect` (the transports one after the other), then all `settle`, when each
    has heard why any other could not connect; at last `channel` and `describe` for each peer. What did not work leaves
    ``peers`` empty, and the next transport has its turn; where the user asked for this one (``hosts[rank].transport``),
    `connect` or `settle` raises `RendezvousError` instead.

    ``peers``: the ranks that it joins with this one, as far as is known by now. ``memory``: what ranks share, for
    collectives that go past the channels. ``notes``: what `GroupInfo.notes` should say. ``name`` and ``typical`` are
    the transport's.
    """

    name: str
    typical: Measured | None
    peers: Collection[int]
    memory: SharedMemory | None = None
    notes: Sequence[str] = ()

    def offer(self) -> Struct | None:
        """Offer to all other ranks, which should know it before they `connect`."""
        return None

    def connect(
        self, offers: Sequence[Raw | None], channels: Mapping[int, ControlChannel], joined: Collection[int]
    ) -> str:
        """Join other ranks, but those that are ``joined`` already by a transport before this one.

        ``offers``: every rank's; ``channels``: to the ranks that share a link with this one. Returns why it did not
        work, or "". Raises `RendezvousError` where the user asked for this transport alone.
        """
        return ""

    def settle(self, reasons: Sequence[str]) -> None:
        """All have tried, and this is what each rank's `connect` returned."""
        return

    def channel(self, stream: int, to: PeerConnections) -> _native.Channel:
        """The pipe to one of ``peers`` for one stream, with room for 256 KiB that are sent ahead.

        It takes over the connections of that stream; one that needs none of them closes what ``to.take_one`` gives.
        """
        ...

    def describe(self, to: PeerConnections) -> tuple[str, tuple[RailInfo, ...]]:
        """The path to one of ``peers`` for people, and the rails that it consists of, if any."""
        ...

    def close(self) -> None:
        """The group is not made: leave nothing behind."""
        return


class Transport(Protocol):
    """Registered in `ferrule.fabric.transports.table`.

    ``typical``: what a message costs between any two ranks that it joins; None: their links have to be measured.
    """

    name: str
    typical: Measured | None

    def expected(self, one: RankHost, other: RankHost) -> bool:
        """Whether what two hosts tell makes it all but certain that it joins their ranks. Pure; the same for both."""
        ...

    def session(self, rank: int, hosts: Sequence[RankHost], deadline: Deadline) -> Session: ...

    def repair(self, mesh: Mesh, first: Live) -> Callable[[], None] | None:
        """Start what repairs its channels, those of ``first`` and of later groups, and return what ends that.

        None: there is nothing to repair.
        """
        return None
