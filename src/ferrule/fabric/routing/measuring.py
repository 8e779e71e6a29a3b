"""Link costs of a new group: measured now, or known since an earlier start."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from ferrule.fabric.join.connections import Connections
from ferrule.fabric.join.control_channel import ControlChannel
from ferrule.fabric.join.decisions import Expected
from ferrule.fabric.join.mesh import STREAMS
from ferrule.fabric.join.messages import Pairs
from ferrule.fabric.join.new_group import NewGroup
from ferrule.fabric.join.pending import Place
from ferrule.fabric.routing.calibration import Measured, Pair, measure, representatives, schedule, together
from ferrule.fabric.routing.known_links import Ends, KnownLinks, link_ends
from ferrule.fabric.routing.paths import Path, Rail


class Measuring:
    """``measured``: what this rank measured, by rank and rail."""

    def __init__(self, new: NewGroup, connections: Connections, expected: Expected) -> None:
        self._new = new
        self._connections = connections
        self._expected = expected
        self.measured: dict[int, dict[int, Measured]] = {}

    def known(self) -> dict[int, dict[int, Measured]]:
        """By rank and rail, what this rank knows since an earlier start of the links that there may be."""
        new = self._new
        if not new.first or new.mesh.calibrate != "cached":
            return {}
        links = KnownLinks()
        known = {}
        for other, host in enumerate(new.hosts):
            if other != new.rank and not self._expected(host, new.hosts[new.rank]):
                found = {rail.number: links.find(self._ends(other, rail)) for rail in new.candidates(other)}
                known[other] = {number: one for number, one in found.items() if one}
        return known

    def measure(self, agreed: Pairs, pairs: Sequence[Pair], joined: Collection[int]) -> dict[int, Measured]:
        """Costs of the links to lower ranks, as far as this rank has to measure them, or knows.

        ``pairs``: (lower, higher), all that are to be measured; ``joined``: the ranks to which this one has no need to.
        """
        rank = self._new.rank
        chosen = set(representatives(self._new.hosts, pairs).values())
        known = {(low, high): rails for (high, low), rails in agreed.known}
        for low, high in itertools.chain(chosen & known.keys(), *schedule(chosen - known.keys())):
            other = high if rank == low else low
            if rank not in (low, high) or other in joined:
                continue
            numbers = known.get((low, high), {})
            self.measured[other] = {
                place.rail: numbers.get(place.rail)
                or measure(
                    channel, higher=rank == high, deadline=self._new.deadline, second=self._second_channel(place)
                )
                for place, channel in sorted(self._connections.channels.items(), key=lambda item: item[0])
                if place[:2] == (STREAMS[0], other)
            }
        self._remember()
        return {other: together(list(rails.values())) for other, rails in self.measured.items() if other < rank}

    def choose_sockets(self) -> None:
        """Choose a second socket for the pairs where two measured faster, which the higher rank makes soon afterwards.

        Other ranks need not know, and do not wait for it: to begin with it is a rail that is missing.
        """
        if self._new.sockets:
            return
        for other, measured in self.measured.items():
            member = self._new.members[other]
            first = self._new.mesh.paths[member].rails
            fast = {rail.base for rail in first if rail.number in measured and measured[rail.number].sockets > 1}
            numbers = {rail.number for rail in first}
            more = [rail for rail in self._new.candidates(other, 2) if rail.base in fast and rail.number not in numbers]
            self._new.mesh.paths[member] = Path((*first, *more))

    def _second_channel(self, place: Place) -> ControlChannel | None:
        """The other stream's connection over the same cable, to find out whether two sockets are faster than one."""
        rails = self._new.paths()[place.rank].rails
        cable = any(rail.number == place.rail and rail.interface for rail in rails)
        if not cable or self._new.sockets:
            return None
        return self._connections.channels[Place(STREAMS[1], place.rank, place.rail)]

    def _remember(self) -> None:
        paths = self._new.paths()
        measured = {
            self._ends(other, rail): rails[rail.number]
            for other, rails in self.measured.items()
            for rail in paths[other].rails
            if rail.number in rails
        }
        KnownLinks().store({ends: one for ends, one in measured.items() if ends is not None and one.at is None})

    def _ends(self, other: int, rail: Rail) -> Ends | None:
        new = self._new
        ends = link_ends(new.hosts[new.rank], new.hosts[other], rail, higher=new.rank > other)
        # What a link costs when it is encrypted is remembered apart.
        return ends if ends is None or not new.mesh.encrypt else (f"{ends[0]} tls", f"{ends[1]} tls")
