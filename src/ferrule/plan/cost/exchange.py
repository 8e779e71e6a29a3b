"""Cost of messages between the devices of a cluster: by the fabric's own decision table, over its own routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ferrule.errors import PlanError
from ferrule.fabric.routing.algorithms import CANDIDATES, WORK_SECONDS, Model
from ferrule.fabric.routing.costs import PairCosts
from ferrule.fabric.routing.topology import TYPICAL_BYTES, cheapest_routes, pair_cost
from ferrule.fabric.routing.topology import Route as RankRoute
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.remembered import remembered

EMULATED_WORK = 75e-6
"""Seconds of a processor for each end of a message between emulated hosts: both systems, the shaper, waiting that keeps
others from a core, and caches that find other things in them. 27 to 54 us with four ranks on two cores, 300 us of work
between sums of 1 KiB, and more where that work is a layer, whose pieces take 20 to 50 % longer between messages than
without; chosen with the engine's rows in sight (docs/planner.md). Of two hosts the ends have a core each, at the same
time."""
PAIR_AT_ONCE = 128 << 10
"""Up to this size two ranks exchange all they have; above, each reduces half (native/src/collectives/net.cpp)."""


@dataclass(frozen=True)
class Route:
    """``alpha`` seconds and ``beta`` seconds per byte from one device to another; ``where``: its first slowest rail or
    pair, in words; ``relayed``: by other devices of the plan."""

    alpha: float
    beta: float
    where: str
    relayed: bool = False


class Exchange:
    """Between the devices of one plan: a message may be relayed by any of them."""

    def __init__(self, cluster: ClusterSpec, devices: Sequence[str]) -> None:
        self._cluster = cluster
        self._devices = tuple(devices)
        self._place = {name: place for place, name in enumerate(self._devices)}
        self._costs = cluster.costs(self._devices)

    @cached_property
    def _paths(self) -> list[dict[int, RankRoute]]:
        return [cheapest_routes(self._costs, rank) for rank in range(len(self._devices))]

    @property
    def connected(self) -> bool:
        return len(self._paths[0]) == len(self._devices)

    @remembered
    def route(self, a: str, b: str) -> Route:
        """Raises `PlanError` where no cables lead from ``a`` to ``b``."""
        pair = self._cluster.pair(a, b)
        direct = None if pair is None else Route(pair.alpha, 1 / pair.bandwidth, f"{pair.best_rail.name} ({pair.name})")
        if direct is not None and self._nothing_is_cheaper(a, b):
            return direct
        path = self._paths[self._place[a]].get(self._place[b])
        if path is None:
            raise PlanError(f"no cables lead from {a} to {b}")
        if len(path.hops) == 2:
            assert direct is not None
            return direct
        names = [self._devices[hop] for hop in path.hops]
        return Route(path.latency, path.beta, "-".join(names), relayed=True)

    def _nothing_is_cheaper(self, a: str, b: str) -> bool:
        """The first and the last hop of a longer way alone cost as much: spares looking for paths."""
        one, other = self._place[a], self._place[b]
        alpha, beta = pair_cost(self._costs, one, other)
        return alpha + beta * TYPICAL_BYTES <= self._nearest[one] + self._nearest[other]

    @cached_property
    def _nearest(self) -> list[float]:
        """By rank: what its cheapest neighbour costs."""
        found = []
        for rank in range(len(self._devices)):
            those = [pair_cost(self._costs, rank, other) for other in self._costs.neighbours(rank)]
            found.append(min((alpha + beta * TYPICAL_BYTES for alpha, beta in those), default=0.0))
        return found

    def message(self, a: str, b: str, size: float) -> float:
        """Seconds of one message of ``size`` bytes."""
        route = self.route(a, b)
        return route.alpha + size * route.beta

    def collective(self, devices: Sequence[str], kind: str, size: float) -> float:
        """Seconds of an ``all_reduce`` of ``size`` bytes, an ``all_gather`` or ``gather`` of that many in all, or an
        ``all_to_all`` in which all devices together send so many to others."""
        return self._team(tuple(devices)).seconds(kind, size)

    def where(self, devices: Sequence[str]) -> str:
        """The slowest way between any two of them, in words."""
        return self._team(tuple(devices)).where

    @remembered
    def _team(self, devices: tuple[str, ...]) -> _Team:
        return _Team(self, devices, self._costs.crowding, emulated=self._cluster.cores is not None)


class _Team:
    def __init__(self, exchange: Exchange, devices: tuple[str, ...], crowding: float, *, emulated: bool) -> None:
        routes = [[exchange.route(a, b) if a != b else None for b in devices] for a in devices]
        everywhere = [route for row in routes for route in row if route is not None]
        slowest = max(everywhere, key=lambda route: (route.alpha, route.beta, route.where))
        self._size = len(devices)
        self._alpha, self._beta = slowest.alpha, max(route.beta for route in everywhere)
        self.where = slowest.where
        self._costs = PairCosts(
            tuple(tuple(None if route is None else route.alpha for route in row) for row in routes),
            tuple(tuple(None if route is None else route.beta for route in row) for row in routes),
            crowding,
        )
        self._work = EMULATED_WORK if emulated else WORK_SECONDS
        # Of real hosts it is within what their rails were measured to take.
        self._pair_work = EMULATED_WORK if emulated else 0.0

    @cached_property
    def _model(self) -> Model:
        return Model(self._costs)

    @cached_property
    def _told(self) -> Model:
        """Model that gives the time; which algorithm is used, the fabric decides by `_model`."""
        return self._model.at_work(self._work)

    def seconds(self, kind: str, size: float) -> float:
        if self._size == 2:
            if kind != "all_reduce":
                return self._pair_work + self._alpha + size / 2 * self._beta
            return (1 if size <= PAIR_AT_ONCE else 2) * (self._pair_work + self._alpha) + size * self._beta
        return self._of(kind, max(1, round(size)))

    @remembered
    def _of(self, kind: str, size: int) -> float:
        asked = size if kind == "all_reduce" else -(-size // self._size)
        if kind == "all_to_all":  # directly as well: each sends every other a part, as if that were gathered
            return self._told.seconds("all_gather", "pieces", -(-size // (self._size * (self._size - 1))))
        if kind == "gather":  # each part goes directly to the root, as in a direct reduce of arrays of that size
            return self._told.seconds("reduce", "pieces", asked)
        return self._told.seconds(kind, self._algorithm(kind, asked), asked)

    def _algorithm(self, kind: str, size: int) -> str:
        """Algorithm of the fabric's decision table (`choose_algorithms`). Its rows end at powers of two; only the one
        that is asked for is worked out."""
        up_to = min(max(8, 1 << (size - 1).bit_length()), 1 << 32)
        shapes = {"tree": self._model.tree, "ring": self._model.ring}
        possible = [name for name in CANDIDATES[kind] if shapes.get(name, True)]
        return min((self._model.seconds(kind, name, up_to), name) for name in possible)[1]
