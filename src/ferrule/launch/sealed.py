"""Bytes between a launcher and a supervisor over an agent's connection: nobody on the cable reads or alters them.

Each frame is encrypted with SHAKE-256 of a key and the frame's number, and then carries an HMAC-SHA256 over both. A key
is for one job, and each direction has keys of its own, so that no number comes twice. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator

from ferrule.errors import AuthError

_HEAD = struct.Struct("<I 32s")
_NUMBER = struct.Struct("<Q")
_MOST_BYTES = 1 << 20
DOWN, UP = "down", "up"


class _Line:
    def __init__(self, secret: str, direction: str) -> None:
        self._lock, self._mark = (_derived(secret, f"{direction} {what}") for what in ("encrypt", "mark"))
        self._number = 0

    def _mac(self, data: bytes) -> bytes:
        return hmac.new(self._mark, _NUMBER.pack(self._number) + data, hashlib.sha256).digest()

    def _mixed(self, data: bytes) -> bytes:
        stream = hashlib.shake_256(self._lock + _NUMBER.pack(self._number)).digest(len(data))
        return (int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")).to_bytes(len(data), "little")


class Sealer(_Line):
    """``secret``: what both ends know; ``direction``: `DOWN` or `UP`."""

    def seal(self, data: bytes) -> bytes:
        """Frames for ``data``."""
        return b"".join(self._frame(data[at : at + _MOST_BYTES]) for at in range(0, len(data), _MOST_BYTES))

    def _frame(self, data: bytes) -> bytes:
        hidden = self._mixed(data)
        frame = _HEAD.pack(len(hidden), self._mac(hidden)) + hidden
        self._number += 1
        return frame


class Opener(_Line):
    """The other end of a `Sealer`."""

    def __init__(self, secret: str, direction: str) -> None:
        super().__init__(secret, direction)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What is complete now. Raises `AuthError` for a frame that was altered on its way."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            length, mac = _HEAD.unpack_from(self._buffer)
            if length > _MOST_BYTES:
                raise AuthError("a frame was altered on its way")
            if len(self._buffer) < _HEAD.size + length:
                return
            hidden = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            if not hmac.compare_digest(mac, self._mac(hidden)):
                raise AuthError("a frame was altered on its way")
            found = self._mixed(hidden)
            self._number += 1
            yield found


def _derived(secret: str, purpose: str) -> bytes:
    return hmac.new(bytes.fromhex(secret), b"ferrule launch\0" + purpose.encode(), hashlib.sha256).digest()
