"""The transport that joins any two ranks: one TCP connection per stream and rail, repaired while the group lives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ferrule import _native
from ferrule.fabric.describe import RailInfo
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.mesh import Mesh
from ferrule.fabric.routing.calibration import Measured
from ferrule.fabric.transports.protocol import PeerConnections, Session
from ferrule.fabric.transports.tcp.rail_repair import RailRepair
from ferrule.secure.token import write_address

_NAME = "tcp"
_STALL_SECONDS = 0.4
"""A rail on which nothing moves for so long while others move is given up: a few times what TCP takes to send a lost
packet again."""


class TcpSession(Session):
    """The connections of the rendezvous are its rails."""

    name = _NAME
    typical: Measured | None = None

    def __init__(self, rank: int, hosts: Sequence[RankHost]) -> None:
        self.peers: Collection[int] = [other for other in range(len(hosts)) if other != rank]

    def channel(self, stream: int, to: PeerConnections) -> _native.Channel:
        rails, channels = to.path.rails, to.streams[stream]
        if len(rails) < 2:
            return _native.Channel.tcp(to.rank, to.peer, to.take_one(stream), to.epoch)
        fds = [channels[rail.number].socket.detach() if rail.number in channels else -1 for rail in rails]
        # Small messages go over the rail of the lowest latency.
        alphas = [to.measured[rail.number].alpha if rail.number in to.measured else math.inf for rail in rails]
        best = alphas.index(min(alphas))
        return _native.Channel.rails(to.rank, to.peer, to.epoch, fds, best, _STALL_SECONDS)

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

    def repair(self, mesh: Mesh) -> Callable[[], None] | None:
        """Of rails beside others, and of connections through ranks that may be lost."""
        several = any(len(path.rails) > 1 for peer, path in mesh.paths.items() if peer < mesh.rank)
        return RailRepair(mesh).close if mesh.routes or several else None
