"""Topology: hosts and the cables that join them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from ferrule.errors import ConfigError
from ferrule.hardware.shaping import Shaping


@dataclass(frozen=True)
class CableSpec(Shaping):
    """A cable between two hosts, or a switch with a cable to each of several; its numbers are for both directions.

    ``mtu`` in bytes; None: the lab's. Raises `ConfigError` where the numbers cannot be a cable's.
    """

    hosts: tuple[int, ...]
    mtu: int | None = field(default=None, kw_only=True)

    @property
    def shaping(self) -> Shaping:
        """The numbers alone."""
        return Shaping(**{one.name: getattr(self, one.name) for one in fields(Shaping)})


@dataclass(frozen=True)
class Topology:
    """``hosts`` of them, numbered from 0, and the cables between them. Two hosts may share several cables."""

    hosts: int
    cables: tuple[CableSpec, ...]

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise ConfigError(f"a topology needs at least one host, not {self.hosts}")
        for cable in self.cables:
            if len(set(cable.hosts)) != len(cable.hosts) or len(cable.hosts) < 2:
                raise ConfigError(f"a cable joins two different hosts, not {cable.hosts}")
            if not all(0 <= host < self.hosts for host in cable.hosts):
                raise ConfigError(f"a cable joins hosts {cable.hosts}, but there are only hosts 0 to {self.hosts - 1}")

    def shaped(self, **changes: Any) -> Self:
        """The same with other cables: ``pair(2).shaped(delay=10e-6, rate=1e9)``. ``changes``: fields of `CableSpec`."""
        return replace(self, cables=tuple(replace(cable, **changes) for cable in self.cables))

    def between(self, one: int, other: int) -> tuple[int, ...]:
        """The numbers of the cables that join two hosts directly."""
        ends = {one, other}
        return tuple(number for number, cable in enumerate(self.cables) if len(ends) == 2 and ends <= set(cable.hosts))

    def neighbours(self, host: int) -> tuple[int, ...]:
        """The hosts that share a cable with ``host``, in order."""
        found = {other for cable in self.cables if host in cable.hosts for other in cable.hosts}
        return tuple(sorted(found - {host}))

    def next_hop(self, source: int, target: int) -> int | None:
        """The first host on a shortest way from ``source`` to ``target``; None where no cables lead there."""
        distance = {target: 0}
        frontier = [target]
        while frontier and source not in distance:
            reached = sorted({other for host in frontier for other in self.neighbours(host)} - distance.keys())
            distance |= dict.fromkeys(reached, distance[frontier[0]] + 1)
            frontier = reached
        nearer = [host for host in self.neighbours(source) if host in distance]
        return min(nearer, key=lambda host: distance[host], default=None)


def edges(hosts: int, pairs: Iterable[tuple[int, int]], rate: float | None = None) -> Topology:
    """A cable for each pair of hosts, any shape."""
    return Topology(hosts, tuple(CableSpec(pair, rate=rate) for pair in pairs))


def pair(cables: int = 1, rates: Sequence[float | None] | None = None) -> Topology:
    """Two hosts with one or more cables between them. ``rates``: one per cable, in bits per second."""
    rates = rates if rates is not None else [None] * cables
    return Topology(2, tuple(CableSpec((0, 1), rate=rate) for rate in rates))


def mesh(hosts: int, rate: float | None = None) -> Topology:
    """A cable between any two hosts."""
    return edges(hosts, [(one, other) for one in range(hosts) for other in range(one + 1, hosts)], rate)


def ring(hosts: int, rate: float | None = None) -> Topology:
    """A cable from each host to the next, and from the last to the first; two hosts get one cable."""
    if hosts < 3:
        return chain(hosts, rate)
    return edges(hosts, [(host, (host + 1) % hosts) for host in range(hosts)], rate)


def chain(hosts: int, rate: float | None = None) -> Topology:
    """A cable from each host to the next."""
    return edges(hosts, [(host, host + 1) for host in range(hosts - 1)], rate)


def star(hosts: int, rate: float | None = None) -> Topology:
    """A cable from host 0 to each of the others."""
    return edges(hosts, [(0, host) for host in range(1, hosts)], rate)


def switch(hosts: int, rate: float | None = None) -> Topology:
    """All hosts on one switch: one subnet, any two reach each other. ``rate`` is that of each host's port."""
    return Topology(hosts, (CableSpec(tuple(range(hosts)), rate=rate),) if hosts > 1 else ())
