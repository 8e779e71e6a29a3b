"""Store of measured links: the numbers, and the file of the user's in which they are kept."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import msgspec

from ferrule.files import FileRecord, cache_directory, locked, read_record, write_record

_log = logging.getLogger(__name__)

_VERSION = 2
_MAX_PAIRS = 200
_LOCK_SECONDS = 0.5

Fault = Literal["", "stall", "one-way", "blocked", "large", "no-rdma"]
"""Reason why a link could not be measured: nothing arrives, or only one way; packets arrive, and no connection comes
about; small messages pass and large ones do not; both ends have RDMA on it, and it does not work."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Of messages of ``size`` bytes, in seconds one way: half of a round trip."""

    size: int
    minimum: float
    median: float
    p99: float


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Goodput (bits per second of what a program sends) with ``streams`` connections, TCP's start not counted.

    ``forth``: from the first end to the second while nothing comes back; ``back``: the other way; ``both_*``: the same
    while both directions are under load. ``busy``: the part of the processors that was in use then, on the host where
    it was more; or of one, where one thread used more of that.
    """

    streams: int
    forth: float
    back: float
    both_forth: float
    both_back: float
    busy: float = 0.0

    @property
    def together(self) -> float:
        """Sum of both directions at once, in parts of what one gets alone. A good cable has 2."""
        alone = (self.forth + self.back) / 2
        return (self.both_forth + self.both_back) / alone if alone else 0.0


DIRECTIONS = ("forth", "back", "both_forth", "both_back")
"""The rates of a `Bandwidth`, in its order."""


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """``host``: its name. ``identity``: tells the interface from others, also tomorrow; empty where nothing does.

    ``speed``: what the cable trained at, in bits per second from this end to the other; None where nothing tells.
    ``kind``: of the interface, as `NetDevice.kind`.
    """

    host: str
    interface: str
    address: str = ""
    identity: str = ""
    kernel: str = ""
    kind: str = ""
    speed: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """A link that was measured. ``at``: when, in seconds since 1970; ``mtu`` in bytes. ``transport``: ``tcp``, or
    ``verbs`` where both ends have RDMA on it: each is a `MeasuredLink` of its own.

    ``framing``: bits on the wire for each bit of goodput, headers and gaps between frames included; 1 if unknown.
    ``bandwidth``: by number of streams, the least first. ``fault``: what went wrong, with ``detail`` in words.
    """

    ends: tuple[LinkEnd, LinkEnd]
    at: float
    transport: str = "tcp"
    mtu: int = 0
    framing: float = 1.0
    latency: tuple[Latency, ...] = ()
    bandwidth: tuple[Bandwidth, ...] = ()
    fault: Fault = ""
    detail: str = ""

    @property
    def name(self) -> str:
        """For people: ``strix-a thunderbolt0 ↔ strix-b thunderbolt0``, and the transport if it is not TCP."""
        ends = " ↔ ".join(f"{end.host} {end.interface}" for end in self.ends)
        return ends if self.transport == "tcp" else f"{ends}, {self.transport}"

    def latency_of(self, size: int) -> float | None:
        """The median for messages of ``size`` bytes, in seconds, between those that were measured in proportion."""
        points = sorted((one.size, one.median) for one in self.latency)
        for (below, at_below), (above, at_above) in itertools.pairwise(points):
            if below <= size <= above:
                return at_below + (at_above - at_below) * (size - below) / (above - below)
        return None

    @property
    def forth(self) -> float:
        """The best goodput one way from the first end, with any number of streams."""
        return max((one.forth for one in self.bandwidth), default=0.0)

    @property
    def back(self) -> float:
        return max((one.back for one in self.bandwidth), default=0.0)

    @property
    def both(self) -> tuple[float, float]:
        """The best pair of goodputs under load both ways, by their sum."""
        pairs = ((one.both_forth, one.both_back) for one in self.bandwidth)
        return max(pairs, key=sum, default=(0.0, 0.0))


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """Two hosts and the links between them. ``together``: all links at once, one stream each, if several."""

    hosts: tuple[str, str]
    at: float
    links: tuple[MeasuredLink, ...] = ()
    together: Bandwidth | None = None

    @property
    def best_latency(self) -> float | None:
        """The median of the smallest message over the quickest link, in seconds."""
        return min((link.latency[0].median for link in self.links if link.latency), default=None)

    @property
    def rates(self) -> tuple[float, float]:
        """Goodput one way each: over all links at once, or over the best one."""
        forths, backs = [link.forth for link in self.links], [link.back for link in self.links]
        if self.together is not None:
            forths.append(self.together.forth)
            backs.append(self.together.back)
        return max(forths, default=0.0), max(backs, default=0.0)

    @property
    def turned(self) -> Self:
        """The same, seen from the second host."""
        return dataclasses.replace(
            self,
            hosts=(self.hosts[1], self.hosts[0]),
            links=tuple(map(_turned_link, self.links)),
            together=None if self.together is None else _turned_bandwidth(self.together),
        )

    def link(self, like: MeasuredLink) -> MeasuredLink | None:
        """That between the same two interfaces, by the same transport; None where that is not known for certain."""
        wanted = [(end.host, end.interface, end.identity) for end in like.ends]
        same = (
            link
            for link in self.links
            if link.transport == like.transport
            and all(end.identity for end in like.ends)
            and [(end.host, end.interface, end.identity) for end in link.ends] == wanted
        )
        return next(same, None)


def _turned_link(link: MeasuredLink) -> MeasuredLink:
    bandwidth = tuple(map(_turned_bandwidth, link.bandwidth))
    return dataclasses.replace(link, ends=(link.ends[1], link.ends[0]), bandwidth=bandwidth)


def _turned_bandwidth(one: Bandwidth) -> Bandwidth:
    return Bandwidth(one.streams, one.back, one.forth, one.both_back, one.both_forth, one.busy)


class _Saved(FileRecord, frozen=True, tag="measured-links"):
    """Contents of the file. ``pairs``: decoded one by one, so that a damaged one does not hide the others."""

    version: int
    pairs: dict[str, msgspec.Raw]


class MeasuredLinks:
    """The file. Whatever is wrong with it, nothing is known, and probing goes on: it raises nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is None:
            try:
                self._path = cache_directory() / "probed.json"
            except RuntimeError as error:
                _log.info("what was measured is not kept: %s", error)

    def pairs(self) -> tuple[MeasuredPair, ...]:
        """Every pair of hosts that was measured, the newest first."""
        return tuple(sorted(self._read().values(), key=lambda pair: -pair.at))

    def find(self, one: str, other: str) -> MeasuredPair | None:
        """Last measurement between two hosts, as seen from the first."""
        found = self._read().get(_key((one, other)))
        return found if found is None or found.hosts == (one, other) else found.turned

    def store(self, pair: MeasuredPair) -> None:
        """Remember it instead of what was known of these hosts."""
        if self._path is None:
            return
        try:
            with locked(self._path.with_name(".probed.lock"), _LOCK_SECONDS):
                found = self._read()
                found[_key(pair.hosts)] = pair
                newest = sorted(found.items(), key=lambda item: -item[1].at)[:_MAX_PAIRS]
                pairs = {key: msgspec.Raw(msgspec.json.encode(pair)) for key, pair in newest}
                write_record(self._path, _Saved(_VERSION, pairs))
        except OSError as error:
            _log.info("what was measured cannot be kept in %s: %s", self._path, error)

    def _read(self) -> dict[str, MeasuredPair]:
        if self._path is None:
            return {}
        try:
            found = read_record(self._path, _Saved)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read (%r): what was measured earlier is not known", self._path, error)
            return {}
        if found.version != _VERSION:
            return {}
        valid = filter(None, map(_pair_or_none, found.pairs.values()))
        return {_key(pair.hosts): pair for pair in valid}


def _pair_or_none(fields: msgspec.Raw) -> MeasuredPair | None:
    try:
        return msgspec.json.decode(fields, type=MeasuredPair)
    except msgspec.DecodeError:
        return None


def _key(hosts: tuple[str, str]) -> str:
    return " | ".join(sorted(hosts))
