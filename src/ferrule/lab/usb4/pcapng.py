"""The pcapng file format, as far as a trace needs it. Pure.

draft-ietf-opsawg-pcapng: a section header, a description of each interface, and packets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_MAGIC = 0x1A2B3C4D
_END, _NAME, _APPLICATION, _RESOLUTION = 0, 2, 4, 9
_NANOSECONDS = 9
_MOST_BLOCK_BYTES = 1 << 24


class PcapngError(ValueError):
    """Bytes that are no pcapng file of a kind that is read here."""


@dataclass(frozen=True)
class Interface:
    """``link_type``: what packets on it are."""

    name: str
    link_type: int


@dataclass(frozen=True)
class Captured:
    """A packet. ``time``: nanoseconds since 1970; ``length``: bytes that it had, of which ``data`` may be the first."""

    interface: int
    time: int
    length: int
    data: bytes


def header(application: str) -> bytes:
    """Header of a file."""
    fixed = struct.pack("<IHHq", _MAGIC, 1, 0, -1)
    return _block(_SECTION, fixed + _option(_APPLICATION, application.encode()) + _option(_END))


def encode_interface(interface: Interface) -> bytes:
    fixed = struct.pack("<HHI", interface.link_type, 0, 0)
    options = _option(_NAME, interface.name.encode()) + _option(_RESOLUTION, bytes([_NANOSECONDS])) + _option(_END)
    return _block(_INTERFACE, fixed + options)


def decode(data: bytes | mmap) -> Iterator[Interface | Captured]:
    """All interfaces and packets of a file, in its order. A last block that is cut off is left out.

    Raises `PcapngError` for what is no such file, and for times in other units than ours.
    """
    at = 0
    while at + 12 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if at == 0 and kind != _SECTION:
            raise PcapngError("this is no pcapng file")
        if size % 4 or not 12 <= size <= _MOST_BLOCK_BYTES:
            raise PcapngError(f"a block of {size} bytes at {at}")
        if at + size > len(data):
            return
        body = data[at + 8 : at + size - 4]
        if struct.unpack_from("<I", data, at + size - 4)[0] != size:
            raise PcapngError(f"the block at {at} ends with another size than it begins with")
        if kind == _SECTION and (len(body) < 16 or struct.unpack_from("<I", body)[0] != _MAGIC):
            raise PcapngError("a pcapng file of another byte order")
        if kind == _INTERFACE:
            yield _interface(body)
        elif kind == _PACKET:
            yield _captured(body)
        at += size
    if at == 0:
        raise PcapngError("this is no pcapng file")


def _interface(body: bytes) -> Interface:
    if len(body) < 8:
        raise PcapngError("an interface's description is too short")
    options = dict(_options(body[8:]))
    if options.get(_RESOLUTION, b"\x06") != bytes([_NANOSECONDS]):
        raise PcapngError("times in other units than nanoseconds")
    return Interface(options.get(_NAME, b"").decode(errors="replace"), int(struct.unpack_from("<H", body)[0]))


def _captured(body: bytes) -> Captured:
    if len(body) < 20:
        raise PcapngError("a packet's block is too short")
    interface, high, low, kept, length = struct.unpack_from("<IIIII", body)
    if 20 + kept > len(body):
        raise PcapngError(f"a packet of {kept} bytes in a block of {len(body)}")
    return Captured(interface, high << 32 | low, length, body[20 : 20 + kept])


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        code, size = struct.unpack_from("<HH", data, at)
        if code == _END or at + 4 + size > len(data):
            return
        yield code, data[at + 4 : at + 4 + size]
        at += 4 + (size + 3) // 4 * 4


def _option(code: int, value: bytes = b"") -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size
