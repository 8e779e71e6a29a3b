"""A new transport needs its own folder and an entry in the table."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from in_threads import on_all
from msgspec import Raw, Struct, json

from ferrule import _native, fabric
from ferrule.config import TRANSPORT_CHOICES, FabricSettings, TransportChoice
from ferrule.fabric.describe import RailInfo
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.mesh import Live, Mesh
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.transports import table
from ferrule.fabric.transports.protocol import PeerConnections, Session


def test_the_choices_of_the_settings_are_those_of_the_table() -> None:
    names = {"auto", *(transport.name for transport in table.TRANSPORTS)}
    assert names == set(TRANSPORT_CHOICES) == set(get_args(TransportChoice))


class Mailbox(Struct, frozen=True, tag=True):
    """Offer of one rank: by number of the other rank and the stream, an end of a socket pair in this process."""

    ends: dict[int, tuple[int, int]]


class LoopSession(Session):
    """Socket pairs between ranks that are threads of one process; the lower rank of a pair makes them."""

    name = "loop"
    typical = Measured(1e-6, 1e-9, 1e-9)

    def __init__(self, rank: int, hosts: Sequence[RankHost]) -> None:
        self._rank = rank
        self._ends: dict[int, tuple[int, ...]] = {}
        self._size = len(hosts)
        self.peers: Collection[int] = ()

    def offer(self) -> Struct | None:
        theirs = {}
        for other in range(self._rank + 1, self._size):
            pairs = [socket.socketpair() for _ in range(2)]
            self._ends[other] = tuple(mine.detach() for mine, _ in pairs)
            theirs[other] = (pairs[0][1].detach(), pairs[1][1].detach())
        return Mailbox(theirs)

    def connect(
        self, offers: Sequence[Raw | None], channels: Mapping[int, ControlChannel], joined: Collection[int]
    ) -> str:
        for other in range(self._rank):
            self._ends[other] = json.decode(offers[other] or b"", type=Mailbox).ends[self._rank]
        self.peers = tuple(channels)
        return ""

    def channel(self, stream: int, to: PeerConnections) -> _native.Channel:
        socket.close(to.take_one(stream))
        return _native.Channel.tcp(to.rank, to.peer, [self._ends[to.peer][stream]], to.epoch)

    def describe(self, to: PeerConnections) -> tuple[str, tuple[RailInfo, ...]]:
        return "socket pair", ()


class LoopTransport:
    name = "loop"
    typical: Measured | None = LoopSession.typical

    def expected(self, one: RankHost, other: RankHost) -> bool:
        return True

    def session(self, rank: int, hosts: Sequence[RankHost], deadline: Deadline) -> Session:
        return LoopSession(rank, hosts)

    def repair(self, mesh: Mesh, first: Live) -> Callable[[], None] | None:
        return None


def meet(size: int) -> list[fabric.Group]:
    """The ranks of a job as threads of this process."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = ("127.0.0.1", int(listener.getsockname()[1]))
    key = secrets.token_bytes(32)
    settings = [FabricSettings(rank, size, (address,), key, timeout=30.0, calibrate="never") for rank in range(size)]
    settings[0] = replace(settings[0], listen_fd=listener.detach())
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda one: fabric.init(settings=one), settings))


def test_a_transport_in_the_table_carries_collectives_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TRANSPORTS", (LoopTransport(), *table.TRANSPORTS))

    def play(group: fabric.Group) -> None:
        with group:
            assert group.describe().transports == "loop"
            assert str(group.describe()).count("socket pair") == 2
            assert (group.all_reduce(np.full(1000, group.rank + 1.0)) == 6).all()
            y = np.zeros(3)
            group.send(np.full(3, float(group.rank)), (group.rank + 1) % 3)
            group.recv(y, (group.rank - 1) % 3)
            assert (y == (group.rank - 1) % 3).all()
            half = group.split(group.rank % 2)
            assert half is not None
            with half:
                assert half.all_reduce(np.ones(1))[0] == half.size == (1 if group.rank == 1 else 2)
                assert half.describe().transports == ("self" if group.rank == 1 else "loop")

    on_all(meet(3), play)
