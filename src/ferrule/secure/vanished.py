"""End of TCP connections whose peer has vanished: switched off, or behind a cable that was pulled."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Protocol

PROBES = 3


class Settable(Protocol):
    """A socket, or asyncio's view of one."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


def end_when_vanished(connection: Settable, seconds: int) -> None:
    """Let the kernel end ``connection`` about ``seconds`` after the last sign of its peer's life, also where nothing is
    sent (RFC 1122, 4.2.3.6), and on Linux where what is sent is not acknowledged (RFC 5482)."""
    part = max(1, seconds // (PROBES + 1))
    idle = "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE"
    options = {idle: part, "TCP_KEEPINTVL": part, "TCP_KEEPCNT": PROBES, "TCP_USER_TIMEOUT": seconds * 1000}
    with suppress(OSError):  # macOS refuses it for a connection that has ended meanwhile
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
