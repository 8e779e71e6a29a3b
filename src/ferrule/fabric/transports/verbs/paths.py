"""Paths between RDMA ports of two hosts: plain decisions on what both tell of their ports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ferrule.fabric.join.addresses import in_subnet

Wire = Literal["infiniband", "roce", "iwarp"]
QueuePairType = Literal["RC", "UC"]

_MAX_GID_INDEX = 255
_SOFTWARE_VENDORS = {0xFFFFFF: "Soft-RoCE", 0x626D74: "Soft-iWARP"}


@dataclass(frozen=True)
class Gid:
    """One of the names of a port. ``index``: in the port's table. ``version`` of RoCE, 0 where it is unknown.

    ``address``: the IP address that it stands for, with the length of its subnet's prefix (0 when unknown).
    """

    index: int
    address: str
    prefix: int = 0
    version: int = 0


@dataclass(frozen=True)
class Port:
    """A port that has a link. ``mtu`` in bytes; ``subnet``: InfiniBand's, hexadecimal; ``addresses``: iWARP's."""

    device: str
    number: int
    wire: Wire
    vendor: int = 0
    mtu: int = 0
    lid: int = 0
    subnet: str = ""
    gids: tuple[Gid, ...] = ()

    @property
    def software(self) -> str:
        """Software that emulates it, if any does: such a port is slower than the sockets that it sits on."""
        return _SOFTWARE_VENDORS.get(self.vendor, "")


@dataclass(frozen=True)
class End:
    """One end of a path. ``address``: of an iWARP port, else empty."""

    device: str
    port: int
    gid_index: int
    address: str = ""
    label: str = ""


@dataclass(frozen=True)
class VerbsPath:
    """Path that may join a pair of ranks; ``ends`` in the order of their ranks."""

    ends: tuple[End, End]
    type: QueuePairType


def paths(
    low: Sequence[Port],
    high: Sequence[Port],
    types: Sequence[QueuePairType],
    met: tuple[str, str] = ("", ""),
) -> list[VerbsPath]:
    """The paths between two ranks that may work, the most likely first.

    ``low`` and ``high``: the ports of the lower and the higher rank; ``types``: those that both take, the better one
    first; ``met``: the addresses by which the ranks met.
    """
    found = [
        (joint[0], order, VerbsPath(joint[1], kind))
        for one in low
        for other in high
        if one.wire == other.wire and (joint := _joint(one, other, met)) is not None
        for order, kind in enumerate(types)
        if kind == "RC" or one.wire != "iwarp"
    ]
    return [path for _, _, path in sorted(found, key=lambda item: item[:2])]


def _joint(one: Port, other: Port, met: tuple[str, str]) -> tuple[int, tuple[End, End]] | None:
    """Ends by which two ports of the same kind may reach each other, after an order: lower is more likely."""
    if one.wire == "infiniband":
        # The subnet's name is its manager's choice, and mostly the default: it says who is not in reach.
        joined = one.lid and other.lid and one.subnet == other.subnet
        return (1, (End(one.device, one.number, 0), End(other.device, other.number, 0))) if joined else None
    # RoCE v2 passes routers and switches as any UDP packet does.
    ranked = [
        (2 * distance + (mine.version == 1), (_end(one, mine), _end(other, theirs)))
        for mine in one.gids
        for theirs in other.gids
        if mine.version == theirs.version and (distance := _distance(mine, theirs, met)) is not None
    ]
    return min(ranked, key=lambda item: item[0], default=None)


def _end(port: Port, gid: Gid) -> End:
    address = gid.address if port.wire == "iwarp" else ""
    return End(port.device, port.number, gid.index, address, gid.address)


def _distance(mine: Gid, theirs: Gid, met: tuple[str, str]) -> int | None:
    """0 for the addresses by which the ranks met, 1 for a common subnet, 2 for what only trying tells, else None."""
    if (mine.address, theirs.address) == met:
        return 0
    here, there = ipaddress.ip_address(mine.address), ipaddress.ip_address(theirs.address)
    if here.version != there.version:
        return None
    if here.is_link_local or there.is_link_local:
        # One such network is on every cable.
        return 2 if here.is_link_local and there.is_link_local else None
    known = mine.prefix != 0 and theirs.prefix != 0
    joined = known and in_subnet(mine.address, theirs.address, theirs.prefix)
    if here == there or (joined and in_subnet(theirs.address, mine.address, mine.prefix)):
        return 1
    return None


def gid_address(value: bytes) -> str:
    """The IP address that a RoCE GID of 16 bytes stands for."""
    address = ipaddress.IPv6Address(value)
    return str(address.ipv4_mapped or address)


def usable_gids(gids: Iterable[Gid]) -> tuple[Gid, ...]:
    """Without those that a queue pair cannot name, and without a RoCE v1 GID where its address has one of v2 too."""
    kept = [gid for gid in gids if gid.index <= _MAX_GID_INDEX]
    newer = {gid.address for gid in kept if gid.version == 2}
    return tuple(gid for gid in kept if gid.version != 1 or gid.address not in newer)
