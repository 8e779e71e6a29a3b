"""A short way around many stages: nearest neighbour, then 2-opt and or-opt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

_PASSES = 4

Hop = Callable[[int, int], float]


def around(order: Sequence[int], hop: Hop, back: Hop) -> float:
    total = sum(hop(a, b) for a, b in pairwise(order))
    return total + back(order[-1], order[0]) if len(order) > 1 else 0.0


def nearest_neighbours(places: Sequence[int], start: int, hop: Hop) -> list[int]:
    """All of ``places`` from ``start`` on, each time the cheapest hop; ties in their order."""
    order, left = [start], [place for place in places if place != start]
    while left:
        here = order[-1]
        following = min(left, key=lambda place: hop(here, place))
        left.remove(following)
        order.append(following)
    return order


def shorter_ring(order: Sequence[int], hop: Hop, back: Hop) -> list[int]:
    """Improve ``order`` by turning parts of it around (2-opt; Croes, 1958) and moving runs of up to three elsewhere
    (or-opt; Or, 1976) until nothing helps or after some passes. For hops that cost the same both ways."""
    best = list(order)
    cost = around(best, hop, back)
    for _ in range(_PASSES):
        improved = False
        for candidate in _turned(best, hop, back):
            if (value := around(candidate, hop, back)) < cost * (1 - 1e-12):
                best, cost, improved = candidate, value, True
                break
        if not improved:
            return best
    return best


def _turned(order: list[int], hop: Hop, back: Hop) -> list[list[int]]:
    """The neighbours of ``order`` that look better by the hops that change, best first."""
    count, moves = len(order), []
    if count < 3:
        return []

    def edge(place: int, a: int, b: int) -> float:
        return back(a, b) if place == count - 1 else hop(a, b)

    for i in range(count - 1):
        for j in range(i + 1, count):
            before, behind = order[i - 1], order[(j + 1) % count]
            if i == 0 and j == count - 1:
                continue
            now = edge((i - 1) % count, before, order[i]) + edge(j, order[j], behind)
            then = edge((i - 1) % count, before, order[j]) + edge(j, order[i], behind)
            if then < now:
                moves.append((then - now, i, j))
    moves.sort()
    found = [order[:i] + order[i : j + 1][::-1] + order[j + 1 :] for _, i, j in moves[:20]]
    for length in (1, 2, 3):
        for i in range(count - length + 1):
            run, others = order[i : i + length], order[:i] + order[i + length :]
            if len(others) < 2:
                continue
            gaps = [
                (hop(others[k - 1], run[0]) + hop(run[-1], others[k]) - hop(others[k - 1], others[k]), k)
                for k in range(1, len(others))
            ]
            _, k = min(gaps)
            found.append(others[:k] + run + others[k:])
    return found
