"""The vfio-user protocol, server's side: requests out of bytes, answers into bytes. Pure.

Format: QEMU's docs/interop/vfio-user.rst. A message is a header of 16 bytes and a payload; numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec

HEADER_BYTES = 16
MOST_BYTES = 1 << 20
"""Messages larger than that are refused: the largest that a client needs is a write to a region."""

_HEADER = struct.Struct("<HHIII")
FLAG_REPLY, FLAG_NO_REPLY, FLAG_ERROR = 1, 1 << 4, 1 << 5


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


def decode_header(data: bytes) -> Header:
    """Raises `ProtocolError` where no message can begin so."""
    message, command, size, flags, error = _unpack(_HEADER.format, data)
    if not HEADER_BYTES <= size <= MOST_BYTES:
        raise ProtocolError(f"a message of {size} bytes")
    return Header(
        message, command, size, flags & 0xF == FLAG_REPLY, bool(flags & FLAG_NO_REPLY), error * bool(flags & FLAG_ERROR)
    )


def message(number: int, command: int, payload: bytes = b"", *, flags: int = 0, error: int = 0) -> bytes:
    """A header and a payload."""
    return _HEADER.pack(number, command, HEADER_BYTES + len(payload), flags, error) + payload


def reply(to: Header, payload: bytes = b"", error: int = 0) -> bytes:
    return message(to.message, to.command, payload, flags=FLAG_REPLY | FLAG_ERROR * bool(error), error=error)


class _Said(msgspec.Struct):
    capabilities: dict[str, Any] = {}


def version(capabilities: Mapping[str, Any]) -> bytes:
    """Version 0.0, and what its sender can do."""
    return struct.pack("<HH", 0, 0) + msgspec.json.encode({"capabilities": capabilities}) + b"\0"


def decode_version(payload: bytes) -> tuple[int, dict[str, Any]]:
    """The major version, and the sender's capabilities."""
    major, _ = _unpack("<HH", payload)
    text = payload[4:].split(b"\0", 1)[0]
    try:
        return int(major), msgspec.json.decode(text or b"{}", type=_Said).capabilities
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the version's capabilities cannot be read: {error}") from None


@dataclass(frozen=True)
class DmaMap:
    """``flags``: `DMA_WRITE` is in it where the device may write; ``offset``: in the file that comes along."""

    flags: int
    offset: int
    address: int
    size: int


DMA_WRITE, DMA_UNMAP_ALL = 2, 2


def decode_dma_map(payload: bytes) -> DmaMap:
    return DmaMap(*_unpack("<4xIQQQ", payload))


@dataclass(frozen=True)
class DmaUnmap:
    flags: int
    address: int
    size: int


def decode_dma_unmap(payload: bytes) -> DmaUnmap:
    return DmaUnmap(*_unpack("<4xIQQ", payload))


def decode_index(payload: bytes) -> int:
    """Region or interrupt that an INFO request asks for; and, before it, how much its asker has room for."""
    return int(_unpack("<8xI", payload)[0])


def decode_room(payload: bytes) -> int:
    return int(_unpack("<I", payload)[0])


def device_info(regions: int, irqs: int) -> bytes:
    """A PCI device that can be reset."""
    return struct.pack("<IIII", 16, 3, regions, irqs)


_READ, _WRITE, _MMAP, _CAPABILITIES, _SPARSE = 1, 2, 4, 8, 1


def region_info(index: int, size: int, areas: Sequence[tuple[int, int]], room: int) -> bytes:
    """``areas``: offset and size of what a client may map; with any, the file goes along with the message.

    As much as fits into ``room``: without room for all, its size is told and the capabilities are left out.
    """
    flags = _READ | _WRITE if size else 0
    if not areas:
        return struct.pack("<IIIIQQ", 32, flags, index, 0, size, 0)
    total = 32 + 16 + 16 * len(areas)
    if room < total:  # QEMU refuses capabilities that are announced and not there
        return struct.pack("<IIIIQQ", total, flags | _MMAP, index, 0, size, 0)
    fixed = struct.pack("<IIIIQQ", total, flags | _MMAP | _CAPABILITIES, index, 32, size, 0)
    sparse = struct.pack("<HHIII", _SPARSE, 1, 0, len(areas), 0)
    return fixed + sparse + b"".join(struct.pack("<QQ", *area) for area in areas)


def irq_info(index: int, count: int) -> bytes:
    """Interrupts that are told by events."""
    return struct.pack("<IIII", 16, 1 | 8 if count else 0, index, count)


IRQ_NONE, IRQ_EVENTFD = 1, 4


@dataclass(frozen=True)
class SetIrqs:
    """``kind``: what comes with it for each interrupt: `IRQ_NONE`, or `IRQ_EVENTFD` for a descriptor."""

    kind: int
    index: int
    start: int
    count: int


def decode_set_irqs(payload: bytes) -> SetIrqs:
    flags, index, start, count = _unpack("<4xIIII", payload)
    return SetIrqs(flags & 7, index, start, count)


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
    found = Access(*_unpack("<QII", payload))
    if found.count > MOST_BYTES - HEADER_BYTES - 16:
        raise ProtocolError(f"a read of {found.count} bytes")
    return found


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
    writes = list(struct.iter_unpack("<QII8s", payload[8:]))
    if any(size > 8 for _, _, size, _ in writes):
        raise ProtocolError("one of several writes has more than 8 bytes")
    return [Access(offset, region, size, data[:size]) for offset, region, size, data in writes]


def _unpack(form: str, payload: bytes) -> tuple[Any, ...]:
    if len(payload) < struct.calcsize(form):
        raise ProtocolError(f"{len(payload)} bytes, and {struct.calcsize(form)} are needed")
    return struct.unpack_from(form, payload)
