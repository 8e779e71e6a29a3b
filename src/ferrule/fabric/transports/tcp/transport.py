"""The transport that joins any two ranks: one TCP connection per stream and rail, repaired while the group lives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ferrule import _native
from ferrule.fabric.describe import RailInfo
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.mesh import Live, Mesh
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.transports.protocol import PeerConnections, Session
from ferrule.fabric.transports.tcp.rail_repair import RailRepair
from ferrule.secure.token import write_address

_NAME = "tcp"


class TcpSession(Session):
    """The connections of the rendezvous are its rails."""

    name = _NAME
    typical: Measured | None = None

    def __init__(self, rank: int, hosts: Sequence[RankHost]) -> None:
        self.peers: Collection[int] = [other for other in range(len(hosts)) if other != rank]

    def channel(self, stream: int, to: PeerConnections) -> _native.Channel:
        rails, channels = to.path.rails, to.streams[stream]
        if not rails:  # through other ranks
            return _native.Channel.tcp(to.rank, to.peer, [to.take_one(stream)], to.epoch)
        fds = [channels[rail.number].socket.detach() if rail.number in channels else -1 for rail in rails]
        # Small messages go over the rail of the lowest latency.
        alphas = [to.measured[rail.number].alpha if rail.number in to.measured else math.inf for rail in rails]
        best = alphas.index(min(alphas))
        return _native.Channel.tcp(to.rank, to.peer, fds, to.epoch, best)

    def describe(self, to: PeerConnections) -> tuple[str, tuple[RailInfo, ...]]:
        rails = tuple(_rail_info(number, channel, to) for number, channel in to.streams[0].items())
        if to.path.via:
            return f"{_NAME} via " + ", ".join(f"rank {rank}" for rank in to.path.via), rails
        return f"{_NAME} " + " + ".join(map(str, rails)), rails


def _rail_info(number: int, channel: ControlChannel, to: PeerConnections) -> RailInfo:
    interface = next((rail.interface for rail in to.path.rails if rail.number == number), "")
    info = RailInfo(number, interface, write_address(channel.here), write_address(channel.there))
    one = to.measured.get(number)
    if one is None:
        return info
    bandwidth = 1 / (one.up if to.peer > to.rank else one.down)
    return replace(info, latency=one.alpha, bandwidth=bandwidth, measured_at=one.at, sockets=one.sockets)


class TcpTransport:
    name = _NAME
    typical: Measured | None = None

    def expected(self, one: RankHost, other: RankHost) -> bool:
        return True

    def session(self, rank: int, hosts: Sequence[RankHost], deadline: Deadline) -> Session:
        return TcpSession(rank, hosts)

    def repair(self, mesh: Mesh, first: Live) -> Callable[[], None] | None:
        """Of lost rails, and of connections through ranks that may be lost."""
        rails = any(first.native.rails(0, peer) for peer in range(first.rank))
        return RailRepair(mesh).close if mesh.routes or rails else None
