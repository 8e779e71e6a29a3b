"""The two ends of a sealed line between a launcher and a supervisor, each with its plain streams."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from ferrule.errors import AuthError
from ferrule.launch.sealed import Opener, Sealer

_CHUNK = 1 << 16


def start_sealing(source: int, line: socket.socket, sealer: Sealer) -> threading.Thread:
    """Send what comes from ``source``; at its end say so."""

    def run() -> None:
        with suppress(OSError):
            while data := os.read(source, _CHUNK):
                line.sendall(sealer.seal(data))
            line.shutdown(socket.SHUT_WR)

    return _started(run)


def start_opening(line: socket.socket, sink: int, opener: Opener) -> threading.Thread:
    """Write what arrives to ``sink``, which is closed at the line's end, and where a frame was altered."""

    def run() -> None:
        with suppress(OSError, AuthError):
            while data := line.recv(_CHUNK):
                for found in opener.feed(data):
                    _write(sink, found)
        with suppress(OSError):
            os.close(sink)

    return _started(run)


def _write(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def _started(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
