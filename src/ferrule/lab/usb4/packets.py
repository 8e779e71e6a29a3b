"""USB4 control packets: what hosts say to routers, routers to hosts, and hosts to each other. Pure.

USB4 specification, "Configuration Layer". A packet is a number of 32-bit words in network order, the last one a
checksum (CRC-32C); its kind is the PDF value of the frame that it came in.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

FROM_ROUTER = 1 << 31
"""Set in the first word of what does not come from the connection manager itself."""


class Kind(IntEnum):
    READ = 1
    WRITE = 2
    NOTIFICATION = 3
    NOTIFICATION_ACK = 4
    HOT_PLUG = 5
    XDOMAIN_REQUEST = 6
    XDOMAIN_RESPONSE = 7


class Space(IntEnum):
    PATH = 0
    ADAPTER = 1
    ROUTER = 2
    COUNTERS = 3


class Event(IntEnum):
    """Of a notification."""

    NOT_CONNECTED = 0
    LINK_ERROR = 1
    BAD_ADDRESS = 2
    NO_SUCH_ADAPTER = 4
    HOT_PLUG_ACK = 7


class PacketError(ValueError):
    """Bytes that are no control packet."""


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def seal(words: Sequence[int]) -> bytes:
    """The bytes of a packet with these words, and its checksum."""
    data = struct.pack(f">{len(words)}I", *words)
    return data + struct.pack(">I", crc32c(data))


def unseal(data: bytes) -> tuple[int, ...]:
    """The words of a packet without its checksum. Raises `PacketError` for one that is damaged."""
    if len(data) < 12 or len(data) % 4 or len(data) > 256:
        raise PacketError(f"a control packet of {len(data)} bytes")
    *words, crc = struct.unpack(f">{len(data) // 4}I", data)
    if crc32c(data[:-4]) != crc:
        raise PacketError(f"the checksum is {crc:#010x} and should be {crc32c(data[:-4]):#010x}")
    return tuple(words)


@dataclass(frozen=True)
class Address:
    """Target of a read or write. ``count``, ``offset``: in words; ``sequence``: two bits that an answer repeats."""

    space: int
    adapter: int
    offset: int
    count: int
    sequence: int = 0

    def word(self) -> int:
        return self.offset | self.count << 13 | self.adapter << 19 | self.space << 25 | self.sequence << 27


def _address(word: int) -> Address:
    return Address(word >> 25 & 3, word >> 19 & 0x3F, word & 0x1FFF, word >> 13 & 0x3F, word >> 27 & 3)


@dataclass(frozen=True)
class _Access:
    """``route``: 56 bits, a byte for each adapter on the way."""

    route: int
    address: Address
    data: tuple[int, ...] = ()
    from_router: bool = False

    def words(self) -> tuple[int, ...]:
        return self.address.word(), *self.data


class Read(_Access):
    """A request, or with ``data`` its answer."""

    kind = Kind.READ


class Write(_Access):
    """A request, or without ``data`` its answer."""

    kind = Kind.WRITE


@dataclass(frozen=True)
class Notification:
    """``event``: one of `Event` or another number; ``plug``: of an acknowledged hot plug event, 2 plug, 3 unplug."""

    route: int
    event: int
    adapter: int = 0
    plug: int = 0
    from_router: bool = False

    kind = Kind.NOTIFICATION

    def words(self) -> tuple[int, ...]:
        return (self.event | self.adapter << 8 | self.plug << 30,)


@dataclass(frozen=True)
class HotPlug:
    route: int
    adapter: int
    unplug: bool
    from_router: bool = True

    kind = Kind.HOT_PLUG

    def words(self) -> tuple[int, ...]:
        return (self.adapter | self.unplug << 31,)


@dataclass(frozen=True)
class XDomain:
    """Inter-domain message of one host's connection manager to another's; ``body``: from the word with length and
    sequence on."""

    route: int
    body: tuple[int, ...]
    response: bool
    from_router: bool = False

    @property
    def kind(self) -> Kind:
        return Kind.XDOMAIN_RESPONSE if self.response else Kind.XDOMAIN_REQUEST

    def words(self) -> tuple[int, ...]:
        return self.body


Packet: TypeAlias = Read | Write | Notification | HotPlug | XDomain


def encode(packet: Packet) -> bytes:
    high = packet.route >> 32 | FROM_ROUTER * packet.from_router
    return seal([high, packet.route & 0xFFFFFFFF, *packet.words()])


def decode(kind: int, data: bytes) -> Packet:
    """Raises `PacketError` for what is damaged, too short, or of a kind that there is not."""
    words = unseal(data)
    if len(words) < 3:
        raise PacketError(f"a control packet of {len(words)} words")
    route, from_router = (words[0] & 0x3FFFFF) << 32 | words[1], bool(words[0] & FROM_ROUTER)
    match kind:
        case Kind.READ:
            return Read(route, _address(words[2]), words[3:], from_router)
        case Kind.WRITE:
            return Write(route, _address(words[2]), words[3:], from_router)
        case Kind.NOTIFICATION:
            word = words[2]
            return Notification(route, word & 0xFF, word >> 8 & 0x3F, word >> 30, from_router)
        case Kind.HOT_PLUG:
            return HotPlug(route, words[2] & 0x3F, bool(words[2] >> 31), from_router)
        case Kind.XDOMAIN_REQUEST | Kind.XDOMAIN_RESPONSE:
            return XDomain(route, words[2:], kind == Kind.XDOMAIN_RESPONSE, from_router)
    raise PacketError(f"a control packet of the unknown kind {kind}")
