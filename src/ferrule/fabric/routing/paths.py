"""Paths from a rank to another one: the rails between two hosts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ferrule.fabric.join.addresses import pairings
from ferrule.fabric.join.hosts import RankHost


@dataclass(frozen=True)
class Rail:
    """One path to another rank, as this rank sees it, or a candidate for one.

    ``number``: the same on both ranks. ``address``: where the other one listens; ``source`` and ``interface``: from
    where to go there, empty where the system decides. ``other_interface``: the other host's. ``base``: rails that
    are only more sockets on the same interfaces have the same.
    """

    number: int
    address: tuple[str, int]
    source: str = ""
    interface: str = ""
    other_interface: str = ""
    base: int = 0


@dataclass(frozen=True)
class Path:
    """``rails`` lead to the rank itself; or, where there are none, ``via`` are the ranks between, the nearest first."""

    rails: tuple[Rail, ...] = ()
    via: tuple[int, ...] = ()


def candidates(rank: int, own: RankHost, peer: int, other: RankHost, sockets: int = 1) -> tuple[Rail, ...]:
    """All rails that may be between ``rank`` and ``peer``; what really is there shows when they are tried.

    ``sockets``: how many per pair of interfaces. The last one is the address by which the ranks met, if it is none
    of an interface's.
    """
    if rank < peer:
        pairs = pairings(own.interfaces, other.interfaces)
    else:
        pairs = tuple((mine, theirs) for theirs, mine in pairings(other.interfaces, own.interfaces))
    if own.memory_id == other.memory_id:
        pairs = ()
    bases = [
        Rail(0, (theirs.address, theirs.port), mine.address, mine.name, theirs.name, base)
        for base, (mine, theirs) in enumerate(pairs)
    ]
    bases.append(Rail(0, (other.address, other.port), base=len(pairs)))
    return tuple(replace(rail, number=rail.base + copy * len(bases)) for copy in range(sockets) for rail in bases)


def keep(rails: Sequence[Rail], reached: Collection[int]) -> tuple[Rail, ...]:
    """Rails to use of those that were ``reached`` (their numbers): each interface once, on either end."""
    kept: list[int] = []
    used: set[tuple[str, str]] = set()
    for rail in rails:
        if rail.number not in reached or rail.base in kept:
            continue
        ends = {("own", rail.interface), ("other", rail.other_interface)}
        if rail.interface:
            if not ends & used:
                kept.append(rail.base)
                used |= ends
        elif not kept:
            # How the ranks met: most likely over one of the interfaces that are in use already.
            kept.append(rail.base)
    return tuple(rail for rail in rails if rail.number in reached and rail.base in kept)
