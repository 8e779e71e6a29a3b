"""Shapes that lie in the links: cheapest paths, a spanning tree, a ring. Pure, and the same on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrule.fabric.routing.costs import PairCosts

TYPICAL_BYTES = 64 << 10
"""The message size by which paths are compared."""
RELAY_SECONDS = 40e-6
"""Seconds that a rank on the way adds to a message that it forwards: its relay thread has to wake up."""
_RING_STEPS = 20_000
"""Number of steps in the search for a better ring; the first one is found long before on all but strange graphs."""


@dataclass(frozen=True)
class Route:
    """``hops``: the ranks from one end to the other, both included. ``alpha`` (s) adds up, ``beta`` (s/byte) is that
    of the slowest hop: long messages are forwarded while they arrive."""

    hops: tuple[int, ...]
    alpha: float
    beta: float

    @property
    def latency(self) -> float:
        """Seconds of a small message, with the work of the ranks on the way."""
        return self.alpha + max(0, len(self.hops) - 2) * RELAY_SECONDS


def pair_cost(costs: PairCosts, a: int, b: int) -> tuple[float, float]:
    """alpha and beta from ``a`` to ``b``, which share a link."""
    alpha, beta = costs.alpha[a][b], costs.beta[a][b]
    assert alpha is not None
    assert beta is not None
    return alpha, beta


def cheapest_routes(costs: PairCosts, source: int) -> dict[int, Route]:
    """Paths from ``source`` to every rank that can be reached, itself included (Dijkstra; ties by lower ranks)."""
    done: dict[int, Route] = {}
    queue: list[tuple[float, tuple[int, ...], float, float]] = [(0.0, (source,), 0.0, 0.0)]
    while queue:
        total, hops, alpha, beta = heapq.heappop(queue)
        here = hops[-1]
        if here in done:
            continue
        done[here] = Route(hops, alpha, beta)
        for other in costs.neighbours(here):
            if other not in done:
                a, b = pair_cost(costs, here, other)
                heapq.heappush(queue, (total + a + b * TYPICAL_BYTES, (*hops, other), alpha + a, max(beta, b)))
    return done


def best_tree(costs: PairCosts, every: Sequence[Mapping[int, Route]] | None = None) -> tuple[int, ...] | None:
    """Parents (-1: root) of the shortest-path tree whose farthest rank is nearest; None when there is no tree.
    ``every``: the `cheapest_routes` of each rank, where they are known."""
    best: tuple[float, tuple[int, ...]] | None = None
    for root in range(costs.size):
        paths = cheapest_routes(costs, root) if every is None else every[root]
        if len(paths) < costs.size:
            return None
        parents = tuple(-1 if rank == root else paths[rank].hops[-2] for rank in range(costs.size))
        farthest = max(path.alpha + path.beta * TYPICAL_BYTES for path in paths.values())
        if best is None or farthest < best[0]:
            best = (farthest, parents)
    assert best is not None
    return best[1]


def best_ring(costs: PairCosts) -> tuple[int, ...] | None:
    """An order of all ranks in which neighbours share links, with the fastest slowest link found; None without one."""
    best: tuple[tuple[float, float], tuple[int, ...]] | None = None
    steps = 0

    def weight(a: int, b: int) -> tuple[float, float]:
        alpha, beta = pair_cost(costs, a, b)
        return beta, alpha

    by_weight = [
        sorted((*weight(rank, other), other) for other in costs.neighbours(rank)) for rank in range(costs.size)
    ]

    def extend(order: list[int], worst: float, total: float) -> None:
        nonlocal best, steps
        here = order[-1]
        if len(order) == costs.size:
            if costs.linked(here, order[0]):
                beta, alpha = weight(here, order[0])
                found = (max(worst, beta), total + alpha)
                if best is None or found < best[0]:
                    best = (found, tuple(order))
            return
        for beta, alpha, other in by_weight[here]:
            if steps > _RING_STEPS or (best is not None and beta > best[0][0]):
                return  # so are all that follow
            if other not in order:
                steps += 1
                slowest, sum_ = max(worst, beta), total + alpha
                if best is None or (slowest, sum_) < best[0]:
                    extend([*order, other], slowest, sum_)

    if costs.size >= 3:
        extend([0], 0.0, 0.0)
    return None if best is None else best[1]
