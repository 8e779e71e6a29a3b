"""Pipe: one direction of a connection, filled at one end and emptied at the other, through which streams go."""

from __future__ import annotations

import socket
import time
from typing import Protocol

from ferrule.fabric.join.control_channel import Deadline, read_exactly
from ferrule.probe.messages import send_all

GRACE_SECONDS = 1.0
"""Seconds for what is still under way when a stream's time is over."""
_CHUNK_BYTES = 1 << 20
_PATIENCE_SECONDS = 0.1
"""Seconds that a thread waits in the kernel before it looks at the clock."""
_GO = b"G"


class Pipe(Protocol):
    """Times are those of `time.perf_counter`. `say` and `hear` are a word before, from who starts."""

    def say(self, deadline: Deadline) -> None: ...
    def hear(self, deadline: Deadline) -> None: ...

    def pour(self, end: float) -> None:
        """Send until then. What is wrong shows at the other end."""

    def drain(self, begin: float, end: float) -> float:
        """Receive all that comes. Bits per second from the first arrival after ``begin`` to the last before ``end``."""


class Meter:
    """Counts what arrives between two points in time."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._end = begin, end
        self._first = self._last = 0.0
        self._count = 0

    def add(self, count: int) -> None:
        now = time.perf_counter()
        if not self._begin <= now <= self._end:
            return
        if self._first:
            self._count += count
            self._last = now
        else:
            self._first = now

    @property
    def rate(self) -> float:
        """Bits per second; the first arrival only starts the clock."""
        return self._count * 8 / (self._last - self._first) if self._last > self._first else 0.0


class TcpPipe:
    """Over a connected socket, which stays its owner's."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def say(self, deadline: Deadline) -> None:
        send_all(self._socket, _GO, deadline)

    def hear(self, deadline: Deadline) -> None:
        read_exactly(self._socket, len(_GO), deadline, "the other end")

    def pour(self, end: float) -> None:
        self._socket.settimeout(_PATIENCE_SECONDS)
        view = memoryview(bytes(_CHUNK_BYTES))
        try:
            while time.perf_counter() < end:
                try:
                    self._socket.send(view)
                except TimeoutError:
                    continue
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # what arrived tells

    def drain(self, begin: float, end: float) -> float:
        self._socket.settimeout(_PATIENCE_SECONDS)
        buffer = bytearray(_CHUNK_BYTES)
        meter = Meter(begin, end)
        while time.perf_counter() < end + GRACE_SECONDS:
            try:
                got = self._socket.recv_into(buffer)
            except TimeoutError:
                continue
            except OSError:
                break
            if not got:
                break
            meter.add(got)
        return meter.rate
