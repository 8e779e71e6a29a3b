"""The vfio-user protocol, server's side: messages as bytes and back. Pure.

Format: QEMU's docs/interop/vfio-user.rst. A message is a header of 16 bytes and a payload; numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

HEADER_BYTES = 16
MOST_BYTES = 1 << 20
"""Messages larger than that are refused: the largest that a client needs is a write to a region."""

_HEADER = struct.Struct("<HHIII")
_FLAG_REPLY, _FLAG_NO_REPLY, _FLAG_ERROR = 1, 1 << 4, 1 << 5


class Command(IntEnum):
    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    DEVICE_INFO = 4
    REGION_INFO = 5
    REGION_IO_FDS = 6
    IRQ_INFO = 7
    SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    DMA_READ = 11
    DMA_WRITE = 12
    DEVICE_RESET = 13
    REGION_WRITE_MULTI = 15


class ProtocolError(ValueError):
    """A message that breaks the protocol. ``errno``: what to answer."""

    def __init__(self, message: str, errno: int = 22) -> None:
        super().__init__(message)
        self.errno = errno


@dataclass(frozen=True)
class Header:
    """``size``: of the whole message; ``command``: a number that need not be one of `Command`."""

    message: int
    command: int
    size: int
    reply: bool = False
    no_reply: bool = False
    error: int = 0

    def encode(self) -> bytes:
        flags = (_FLAG_REPLY * self.reply) | (_FLAG_NO_REPLY * self.no_reply) | (_FLAG_ERROR * bool(self.error))
        return _HEADER.pack(self.message, self.command, self.size, flags, self.error)


def decode_header(data: bytes) -> Header:
    """Raises `ProtocolError` where no message can begin so."""
    if len(data) < HEADER_BYTES:
        raise ProtocolError(f"a header has {HEADER_BYTES} bytes, and these are {len(data)}")
    message, command, size, flags, error = _HEADER.unpack_from(data)
    if not HEADER_BYTES <= size <= MOST_BYTES:
        raise ProtocolError(f"a message of {size} bytes")
    failed = bool(flags & _FLAG_ERROR)
    return Header(
        message, command, size, bool(flags & 0xF == _FLAG_REPLY), bool(flags & _FLAG_NO_REPLY), error * failed
    )


def message(header: Header, payload: bytes) -> bytes:
    """A whole message; the header's size is what it comes to."""
    return (
        Header(
            header.message, header.command, HEADER_BYTES + len(payload), header.reply, header.no_reply, header.error
        ).encode()
        + payload
    )


def request(number: int, command: Command, payload: bytes = b"", *, no_reply: bool = False) -> bytes:
    return message(Header(number, command, 0, no_reply=no_reply), payload)


def reply(to: Header, payload: bytes = b"", error: int = 0) -> bytes:
    return message(Header(to.message, to.command, 0, reply=True, error=error), payload)


@dataclass(frozen=True)
class Version:
    major: int
    minor: int
    capabilities: Mapping[str, Any]

    def encode(self) -> bytes:
        return (
            struct.pack("<HH", self.major, self.minor)
            + json.dumps({"capabilities": self.capabilities}).encode()
            + b"\0"
        )


def decode_version(payload: bytes) -> Version:
    major, minor = _unpack("<HH", payload)
    text = payload[4:].split(b"\0", 1)[0]
    try:
        said = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise ProtocolError("the version's capabilities are no JSON") from None
    capabilities = said.get("capabilities", {}) if isinstance(said, dict) else None
    if not isinstance(capabilities, dict):
        raise ProtocolError("the version's capabilities are no object")
    return Version(major, minor, capabilities)


@dataclass(frozen=True)
class DmaMap:
    """``offset``: in the file that comes with the message."""

    READ = 1
    WRITE = 2

    flags: int
    offset: int
    address: int
    size: int

    def encode(self) -> bytes:
        return struct.pack("<IIQQQ", 32, self.flags, self.offset, self.address, self.size)


def decode_dma_map(payload: bytes) -> DmaMap:
    _, flags, offset, address, size = _unpack("<IIQQQ", payload)
    return DmaMap(flags, offset, address, size)


@dataclass(frozen=True)
class DmaUnmap:
    ALL = 2

    flags: int
    address: int
    size: int

    def encode(self) -> bytes:
        return struct.pack("<IIQQ", 24, self.flags, self.address, self.size)


def decode_dma_unmap(payload: bytes) -> DmaUnmap:
    _, flags, address, size = _unpack("<IIQQ", payload)
    return DmaUnmap(flags, address, size)


def decode_index(payload: bytes) -> int:
    """Which region or interrupt an INFO request asks for; and, before it, how much its asker has room for."""
    return int(_unpack("<III", payload)[2])


def decode_room(payload: bytes) -> int:
    return int(_unpack("<I", payload)[0])


def device_info(regions: int, irqs: int) -> bytes:
    """A PCI device that can be reset."""
    return struct.pack("<IIII", 16, 3, regions, irqs)


@dataclass(frozen=True)
class RegionInfo:
    """``areas``: offset and size of what a client may map; with any, the file goes along with the message."""

    READ, WRITE, MMAP, _CAPABILITIES = 1, 2, 4, 8
    _SPARSE = 1

    index: int
    size: int
    areas: Sequence[tuple[int, int]] = ()

    def encode(self, room: int) -> bytes:
        """As much as fits into ``room``: without room for all, its size is told and the capabilities are left out."""
        flags = self.READ | self.WRITE if self.size else 0
        if not self.areas:
            return struct.pack("<IIIIQQ", 32, flags, self.index, 0, self.size, 0)
        flags |= self.MMAP
        total = 32 + 16 + 16 * len(self.areas)
        if room < total:  # QEMU refuses capabilities that are announced and not there
            return struct.pack("<IIIIQQ", total, flags, self.index, 0, self.size, 0)
        fixed = struct.pack("<IIIIQQ", total, flags | self._CAPABILITIES, self.index, 32, self.size, 0)
        sparse = struct.pack("<HHIII", self._SPARSE, 1, 0, len(self.areas), 0)
        return fixed + sparse + b"".join(struct.pack("<QQ", *area) for area in self.areas)


def irq_info(index: int, count: int) -> bytes:
    """Interrupts that are told by events."""
    return struct.pack("<IIII", 16, 1 | 8 if count else 0, index, count)


@dataclass(frozen=True)
class SetIrqs:
    NONE, BOOL, EVENTFD = 1, 2, 4
    _TRIGGER = 1 << 5

    kind: int
    trigger: bool
    index: int
    start: int
    count: int

    def encode(self) -> bytes:
        return struct.pack("<IIIII", 20, self.kind | self._TRIGGER * self.trigger, self.index, self.start, self.count)


def decode_set_irqs(payload: bytes) -> SetIrqs:
    _, flags, index, start, count = _unpack("<IIIII", payload)
    return SetIrqs(flags & 7, bool(flags & SetIrqs._TRIGGER), index, start, count)


@dataclass(frozen=True)
class Access:
    """A read or write of ``count`` bytes of a region; ``data`` only in writes and in answers to reads."""

    offset: int
    region: int
    count: int
    data: bytes = b""

    def encode(self) -> bytes:
        return struct.pack("<QII", self.offset, self.region, self.count) + self.data


def decode_read(payload: bytes) -> Access:
    offset, region, count = _unpack("<QII", payload)
    if count > MOST_BYTES - HEADER_BYTES - 16:
        raise ProtocolError(f"a read of {count} bytes")
    return Access(offset, region, count)


def decode_write(payload: bytes) -> Access:
    offset, region, count = _unpack("<QII", payload)
    data = payload[16:]
    if len(data) != count:
        raise ProtocolError(f"a write of {count} bytes that brings {len(data)}")
    return Access(offset, region, count, data)


def decode_write_multi(payload: bytes) -> list[Access]:
    (count,) = _unpack("<Q", payload)
    if 8 + 24 * count != len(payload):
        raise ProtocolError(f"{count} writes in {len(payload)} bytes")
    found = []
    for at in range(8, len(payload), 24):
        offset, region, size = struct.unpack_from("<QII", payload, at)
        if size > 8:
            raise ProtocolError(f"one of several writes has {size} bytes")
        found.append(Access(offset, region, size, payload[at + 16 : at + 16 + size]))
    return found


def _unpack(form: str, payload: bytes) -> tuple[Any, ...]:
    if len(payload) < struct.calcsize(form):
        raise ProtocolError(f"a payload of {len(payload)} bytes, and {struct.calcsize(form)} are needed")
    return struct.unpack_from(form, payload)
