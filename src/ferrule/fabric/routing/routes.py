"""Routes between ranks that share no link: the ranks that a message passes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ferrule.fabric.routing.costs import Matrix, PairCosts
from ferrule.fabric.routing.topology import RELAY_SECONDS, TYPICAL_BYTES, cheapest_routes, pair_cost

Pair = tuple[int, int]

_CABLE = 2.0**-10
"""Of two routes with as many hops the one with fewer cables is better: the other hops stay inside a host."""


def find_routes(
    linked: Collection[Pair], hosts: Sequence[str], costs: PairCosts | None = None
) -> dict[Pair, tuple[int, ...]]:
    """For each two ranks (higher, lower) that share no link: the ranks between them, from the higher one on.

    ``linked``: the pairs (lower, higher) that do. ``hosts``: of each rank. The route is the cheapest by ``costs``;
    without, that with the fewest hops, then the fewest cables, then the lowest ranks. A pair that no links join is
    left out.
    """
    size = len(hosts)
    weights: list[list[float | None]] = [[None] * size for _ in range(size)]
    for low, high in linked:
        weights[low][high] = weights[high][low] = _weight(low, high, hosts, costs)
    alpha: Matrix = tuple(map(tuple, weights))
    beta: Matrix = tuple(tuple(None if cell is None else 0.0 for cell in row) for row in weights)
    pairs = PairCosts(alpha, beta)
    routes = {}
    for low in range(size):
        for high, path in cheapest_routes(pairs, low).items():
            if high > low and not pairs.linked(low, high):
                routes[high, low] = path.hops[-2:0:-1]
    return routes


def _weight(low: int, high: int, hosts: Sequence[str], costs: PairCosts | None) -> float:
    """Of a pair, the same both ways: a route serves both ends."""
    if costs is None:
        return 1.0 if hosts[low] == hosts[high] else 1.0 + _CABLE
    both = (pair_cost(costs, low, high), pair_cost(costs, high, low))
    return RELAY_SECONDS + max(alpha + beta * TYPICAL_BYTES for alpha, beta in both)
