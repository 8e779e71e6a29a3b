"""Captures of the cables of a lab (pcapng): the format of their packets, and a reader. Pure but for `read`.

Each packet is 8 bytes of ours and then the packet: the link type is the first of those for private use, 147.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import ConfigError
from ferrule.lab.usb4 import packets, pcapng
from ferrule.lab.usb4.packets import HotPlug, Notification, Read, Space, Write, XDomain

LINK_TYPE = 147
_VERSION = 1
_HEADER = struct.Struct("<BBHHBB")
_CORRUPT, _DROPPED = 1, 2
_SHOWN_WORDS = 8
_IP_TYPE = 13  # word of a ThunderboltIP packet's type, behind three UUIDs
_IP_HEADER = struct.Struct("<IHHI")  # ThunderboltIP: bytes of a frame, its number, its packet's, frames of that


@dataclass(frozen=True)
class Traced:
    """``interface``: whose packet, such as ``cable0 from strix-1``; ``time``: nanoseconds since 1970; ``control``: a
    control packet, else a frame of a path with this HopID on the cable. ``length``: of which ``data`` has the first."""

    interface: str
    time: int
    control: bool
    corrupt: bool
    dropped: bool
    hop: int
    sof: int
    eof: int
    length: int
    data: bytes


def head(interfaces: Sequence[str]) -> bytes:
    """The head of a capture; the engine numbers interfaces in this order."""
    described = (pcapng.encode_interface(pcapng.Interface(name, LINK_TYPE)) for name in interfaces)
    return pcapng.header("ferrule") + b"".join(described)


def decode(data: bytes | mmap.mmap) -> Iterator[Traced]:
    """Raises `pcapng.PcapngError`."""
    names: list[str] = []
    for block in pcapng.decode(data):
        if isinstance(block, pcapng.Interface):
            if block.link_type != LINK_TYPE:
                raise pcapng.PcapngError(f"packets of link type {block.link_type}, not of a USB4 lab")
            names.append(block.name)
        else:
            yield _traced(block, names)


def _traced(block: pcapng.Captured, names: Sequence[str]) -> Traced:
    if len(block.data) < _HEADER.size or block.interface >= len(names) or block.length < len(block.data):
        raise pcapng.PcapngError("a packet that no USB4 lab has written")
    version, kind, flags, hop, sof, eof = _HEADER.unpack_from(block.data)
    if version != _VERSION:
        raise pcapng.PcapngError(f"version {version} of the trace; this program reads version {_VERSION}")
    return Traced(
        interface=names[block.interface],
        time=block.time,
        control=not kind,
        corrupt=bool(flags & _CORRUPT),
        dropped=bool(flags & _DROPPED),
        hop=hop,
        sof=sof,
        eof=eof,
        length=block.length - _HEADER.size,
        data=block.data[_HEADER.size :],
    )


def read(path: Path) -> Iterator[Traced]:
    """Raises `ConfigError` for a file that is none."""
    try:
        with path.open("rb") as file:  # it may be larger than memory
            if os.fstat(file.fileno()).st_size == 0:
                raise pcapng.PcapngError("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield from decode(data)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except pcapng.PcapngError as error:
        raise ConfigError(f"{path} is no trace of a USB4 lab: {error}") from None


def describe(traced: Traced) -> str:
    """A packet in one line."""
    text = _control(traced) if traced.control else _frame(traced)
    return text + " [corrupt]" * traced.corrupt + " [lost]" * traced.dropped


def _frame(traced: Traced) -> str:
    text = f"path {traced.hop}: {traced.length} bytes, SOF {traced.sof}, EOF {traced.eof}"
    if (traced.sof, traced.eof) == (1, 2) and len(traced.data) >= _IP_HEADER.size:
        size, index, number, count = _IP_HEADER.unpack_from(traced.data)
        if size == traced.length - _IP_HEADER.size and index < count:
            text += f"; ThunderboltIP packet {number}, frame {index + 1} of {count}"
    return text


def _control(traced: Traced) -> str:
    try:
        packet = packets.decode(traced.eof, traced.data)
    except packets.PacketError as error:
        return f"{error}: {traced.data[:16].hex(' ')}"
    who = "from router" if packet.from_router else "to router"
    route = f" route {packet.route:x}" if packet.route else ""
    match packet:
        case Read() | Write():
            at = packet.address
            space = Space(at.space).name.lower()
            where = "" if at.space == Space.ROUTER else f" {at.adapter}"
            said = f"{space}{where} word {at.offset:#x}, {at.count} words{_words(packet.data)}"
            return f"{packet.kind.name.lower()} {who}{route}: {said}"
        case Notification():
            return f"notification {who}{route}: {_event(packet.event)}, adapter {packet.adapter}"
        case HotPlug():
            return f"hot {'un' * packet.unplug}plug {who}{route}: adapter {packet.adapter}"
        case XDomain():
            kind = "response" if packet.response else "request"
            return f"XDomain {kind}{route}: {_xdomain(packet.body)}"


def _event(number: int) -> str:
    known = {event.value: event.name.lower().replace("_", " ") for event in packets.Event}
    return known.get(number, f"event {number}")


_PROTOCOLS = {
    bytes.fromhex("b638d70e42ff40bb97c290e2c0b2ff07"): "discovery",
    bytes.fromhex("798f589e36168a4797c65664a920c8dd"): "ThunderboltIP",
}
_THUNDERBOLT_IP = {0: "login", 1: "login response", 2: "logout", 3: "status"}
_DISCOVERY = {
    1: "UUID (old)",
    2: "UUID response",
    3: "properties",
    4: "properties response",
    5: "properties changed",
    6: "properties changed response",
    7: "error",
    12: "UUID",
    15: "link state",
    16: "link state response",
    17: "link state change",
    18: "link state change response",
}


def _xdomain(body: tuple[int, ...]) -> str:
    if len(body) < 6:
        return f"{len(body)} words{_words(body)}"
    uuid = struct.pack("<4I", *body[1:5])
    protocol = _PROTOCOLS.get(uuid)
    sequence = body[0] >> 27 & 3
    if protocol == "discovery":
        return f"{_DISCOVERY.get(body[5], f'type {body[5]}')}, sequence {sequence}{_words(body[6:])}"
    if protocol == "ThunderboltIP" and len(body) > _IP_TYPE:
        kind = _THUNDERBOLT_IP.get(body[_IP_TYPE], f"type {body[_IP_TYPE]}")
        return f"{protocol} {kind}{_words(body[_IP_TYPE + 1 :])}"
    return f"{protocol or uuid.hex()}, sequence {sequence}{_words(body[5:])}"


def _words(words: Sequence[int]) -> str:
    if not words:
        return ""
    shown = " ".join(f"{word:08x}" for word in words[:_SHOWN_WORDS])
    return f": {shown}" + (" ..." if len(words) > _SHOWN_WORDS else "")
