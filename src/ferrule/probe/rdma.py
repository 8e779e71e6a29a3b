"""Messages and streams over RDMA verbs, by the very channels that groups use."""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Callable, Mapping

from ferrule import _native
from ferrule._native import DTYPES
from ferrule.config import environment, verbs_settings
from ferrule.errors import LinkError
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.mesh import epoch_number
from ferrule.fabric.transports.verbs.pairs import Pair
from ferrule.fabric.transports.verbs.paths import Port
from ferrule.fabric.transports.verbs.ports import Found, find_ports
from ferrule.probe.messages import timed
from ferrule.probe.pipes import GRACE_SECONDS, Meter

_CHUNK_BYTES = 256 << 10
_MORE, _LAST = 1, 0
"""The first byte of a chunk: more will follow, or not."""
_SPIN_US, _YIELD_US = 40.0, 1000.0
_BYTE = DTYPES["uint8"]


def ports_of(interface: str, addresses: frozenset[str], netdevs: Mapping[tuple[str, int], tuple[str, ...]]) -> Found:
    """The RDMA ports that a group would use and that belong to a network interface.

    ``addresses``: the interface's; ``netdevs``: the interfaces of each port, by its device's name and number, where the
    system tells them.
    """
    found = find_ports(verbs_settings(environment()), software=False)

    def belongs(port: Port) -> bool:
        names = netdevs.get((port.device, port.number), ())
        return interface in names if names else any(gid.address in addresses for gid in port.gids)

    ports = tuple(filter(belongs, found.ports))
    return Found(ports, found.reason if ports or not found.ports else f"no RDMA port belongs to {interface}")


class RdmaPipe:
    """A queue pair between both ends of ``channel``, whose socket it takes over. Both ends make it at the same time.

    ``first``: of the two ends, this is the one that starts. Raises `LinkError` with the reason why there is none.
    """

    def __init__(self, channel: ControlChannel, found: Found, *, first: bool, deadline: Deadline) -> None:
        rank, other = (0, 1) if first else (1, 0)
        pair = Pair(rank, other, channel, deadline)
        reason = pair.connect(found, verbs_settings(environment()))
        if not pair.endpoints:
            raise LinkError(f"no queue pair works over this link: {reason}")
        # A group has a stream for collectives, too. Its socket, by which it would notice that the other end is gone,
        # leads nowhere: the stream for messages has the real one.
        ends = socket.socketpair()
        self._nowhere = ends[1]
        fds = ends[0].detach(), channel.socket.detach()
        epoch = epoch_number(channel.identity.epoch)
        channels = (
            _native.Channel.verbs(rank, other, fd, epoch, endpoint)
            for fd, endpoint in zip(fds, pair.endpoints, strict=True)
        )
        collectives, messages = ([None, one] if first else [one, None] for one in channels)
        self._other = other
        self._native = _native.Group(rank, epoch, collectives, messages, None, [], _SPIN_US, _YIELD_US)

    def close(self) -> None:
        self._native.close()
        self._nowhere.close()

    def play(self, size: int, rounds: int, starts: bool, deadline: Deadline) -> list[float]:
        """As `ferrule.probe.messages.Exchange.play`."""
        return timed(size, deadline, lambda at, left: self._native.time("send_recv", at, at, size, _BYTE, rounds, left))

    def say(self, deadline: Deadline) -> None:
        self._checked(self._native.send, (ctypes.c_ubyte * 1)(), deadline)

    def hear(self, deadline: Deadline) -> None:
        self._checked(self._native.recv, (ctypes.c_ubyte * 1)(), deadline)

    def pour(self, end: float) -> None:
        data = (ctypes.c_ubyte * _CHUNK_BYTES)(_MORE)
        at = ctypes.addressof(data)
        while (now := time.perf_counter()) < end:
            if self._native.send(at, _CHUNK_BYTES, _BYTE, self._other, end - now + GRACE_SECONDS):
                return  # what arrived tells
        data[0] = _LAST
        self._native.send(at, _CHUNK_BYTES, _BYTE, self._other, GRACE_SECONDS)

    def drain(self, begin: float, end: float) -> float:
        data = (ctypes.c_ubyte * _CHUNK_BYTES)()
        at = ctypes.addressof(data)
        meter = Meter(begin, end)
        while True:
            left = max(end - time.perf_counter(), 0.0) + GRACE_SECONDS
            if self._native.recv(at, _CHUNK_BYTES, _BYTE, self._other, left) or data[0] == _LAST:
                return meter.rate
            meter.add(_CHUNK_BYTES)

    def _checked(
        self, step: Callable[[int, int, int, int, float], int], word: ctypes.Array[ctypes.c_ubyte], deadline: Deadline
    ) -> None:
        if step(ctypes.addressof(word), len(word), _BYTE, self._other, max(deadline.left, 1e-3)):
            raise LinkError(f"over RDMA: {self._native.failure()[3]}")
