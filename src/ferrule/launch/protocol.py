"""What a launcher and the supervisors of its hosts say to each other: lines of JSON, some with bytes behind them.

Down: ``hello`` (what to tell and keep free), ``start``, ``signal``, ``stop``, ``ping``; the stream's end is the job's.
Up: ``hello``, ``output``, ``exit``, ``error``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

PROTOCOL = 1
GREETING = b"\nferrule supervisor\n"
"""Before it a login script may have printed anything."""

Message = dict[str, Any]
_BYTES = "bytes"


def encode(message: Message, data: bytes = b"") -> bytes:
    if data:
        message = {**message, _BYTES: len(data)}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n" + data


class Decoder:
    """Puts messages together from what arrives. ``greeting``: skip everything before it."""

    def __init__(self, *, greeting: bool = False) -> None:
        self._buffer = bytearray()
        self._waiting = greeting

    def feed(self, data: bytes) -> Iterator[tuple[Message, bytes]]:
        """The messages that are complete now. Raises `ValueError` for what is none."""
        self._buffer += data
        if self._waiting:
            begin = self._buffer.find(GREETING)
            if begin < 0:
                del self._buffer[: -len(GREETING)]
                return
            del self._buffer[: begin + len(GREETING)]
            self._waiting = False
        while (end := self._buffer.find(b"\n")) >= 0:
            message = json.loads(self._buffer[:end])
            if not isinstance(message, dict):
                raise ValueError("is no message")
            size = int(message.get(_BYTES, 0))
            if len(self._buffer) < end + 1 + size:
                return
            found = bytes(self._buffer[end + 1 : end + 1 + size])
            del self._buffer[: end + 1 + size]
            yield message, found
