"""Decisions of rank 0 from the reports of all ranks of a new group. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from ferrule.config import Calibration
from ferrule.errors import RendezvousError
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.messages import AllRouted, Joins, Pair, PairRails, Pairs, Reached, Routed, Verdict
from ferrule.fabric.routing.calibration import Measured, matrix
from ferrule.fabric.routing.costs import PairCosts
from ferrule.fabric.routing.routes import find_routes

Expected = Callable[[RankHost, RankHost], bool]
"""Whether what two hosts tell makes it all but certain that a transport joins them whose cost is typical."""


def measured_pairs(pairs: Sequence[PairRails], hosts: Sequence[RankHost], expected: Expected) -> list[tuple[int, int]]:
    """The pairs (lower, higher) whose links have to be measured. The same on all ranks."""
    found = ((pair.low, pair.high) for pair in pairs if pair.rails)
    return sorted((low, high) for low, high in found if not expected(hosts[low], hosts[high]))


class Decisions:
    """``first``: of a mesh, whose pairs need not be joined directly. ``typical``: the costs of transports that have
    typical ones, None for others, by name in the order of preference."""

    def __init__(
        self,
        hosts: Sequence[RankHost],
        *,
        first: bool,
        calibrate: Calibration,
        expected: Expected,
        typical: Mapping[str, Measured | None],
    ) -> None:
        self._hosts = hosts
        self._first = first
        self._calibrate = calibrate
        self._expected = expected
        self._typical = typical
        self._pairs: tuple[PairRails, ...] = ()

    def pairs(self, reports: Sequence[Reached]) -> Pairs:
        """From the first round. Raises `RendezvousError` where ranks cannot reach each other."""
        self._pairs = tuple(pair for report in reports for pair in report.pairs)
        for pair in self._pairs:
            if not pair.rails and not self._first:
                raise RendezvousError(f"rank {pair.high} cannot reach rank {pair.low}: {'; '.join(pair.notes)}")
        self._routes(None)
        calibrates = self._first and self._calibrate != "never"
        return Pairs(
            self._pairs,
            tuple(report.offers for report in reports),
            calibrates and bool(measured_pairs(self._pairs, self._hosts, self._expected)),
            tuple(known_to_both(reports, self._pairs).items()) if self._calibrate == "cached" else (),
        )

    def verdict(self, reports: Sequence[Joins]) -> Verdict:
        """From the second round, after `pairs`."""
        costs = self._costs(reports) if self._first and self._calibrate != "never" else None
        routes = self._routes(costs) if self._first else {}
        return Verdict(tuple(report.reasons for report in reports), costs, tuple(routes.items()))

    def _costs(self, reports: Sequence[Joins]) -> PairCosts | None:
        if not measured_pairs(self._pairs, self._hosts, self._expected):
            return None
        rails = {(pair.low, pair.high): pair.rails for pair in self._pairs}
        typical: dict[tuple[int, int], Measured | None] = {}
        for low, high in itertools.combinations(range(len(self._hosts)), 2):
            peers = reports[high].peers
            name = next((name for name in self._typical if low in peers.get(name, ())), None)
            if name is not None and (self._typical[name] is not None or rails.get((low, high))):
                typical[low, high] = self._typical[name]
        measured = {(low, high): one for high, report in enumerate(reports) for low, one in report.costs.items()}
        return matrix(self._hosts, typical, measured)

    def _routes(self, costs: PairCosts | None) -> Mapping[Pair, tuple[int, ...]]:
        """For every two ranks that share no link: the ranks between. Raises `RendezvousError` if there is no path."""
        linked = [(pair.low, pair.high) for pair in self._pairs if pair.rails]
        routes = find_routes(linked, [host.memory_id for host in self._hosts], costs)
        for pair in self._pairs:
            if not pair.rails and (pair.high, pair.low) not in routes:
                tried = "; ".join(pair.notes) or "they have no interfaces on one subnet"
                raise RendezvousError(
                    f"rank {pair.high} cannot reach rank {pair.low}, not through other ranks either: {tried}; connect "
                    "their hosts with a cable, or see that FERRULE_INTERFACES leaves out none that leads to a neighbour"
                )
        return routes


def known_to_both(reports: Sequence[Reached], pairs: Sequence[PairRails]) -> dict[Pair, dict[int, Measured]]:
    """Link costs that the higher rank of a pair knows of its rails, where both ranks know all of them."""
    both = {}
    for pair in pairs:
        above, below = reports[pair.high].known.get(pair.low, {}), reports[pair.low].known.get(pair.high, {})
        if all(number in above and number in below for number in pair.rails):
            both[pair.high, pair.low] = {number: above[number] for number in pair.rails}
    return both


def all_routed(reports: Sequence[Routed]) -> AllRouted:
    for report in reports:
        if report.failed:
            raise RendezvousError(report.failed[0])
    return AllRouted()
