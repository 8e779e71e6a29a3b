"""How the heads and experts of a layer are given out to unequal devices."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

_ROUNDING = 1e-9


def whole_shares(
    total: int, seconds: Sequence[float], *, before: Sequence[float] | None = None, most: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Give out ``total`` pieces, at least one to each of some devices and no more than ``most``, so that the slowest
    is done as early as possible, if device i takes ``before[i]`` and then ``seconds[i]`` for a piece. None where that
    cannot be.

    Exact: the next piece always goes to the device that would be done with it first (each device's time grows with
    its pieces, so no other choice can make the slowest faster); ties to the first.
    """
    count = len(seconds)
    limits = [total] * count if most is None else [min(total, limit) for limit in most]
    if total < count or min(limits) < 1 or sum(limits) < total:
        return None
    start = [0.0] * count if before is None else before
    given = _most_of_it(total, start, seconds, limits)
    waiting = [
        (start[place] + (given[place] + 1) * each, place)
        for place, each in enumerate(seconds)
        if given[place] < limits[place]
    ]
    heapq.heapify(waiting)
    for _ in range(total - sum(given)):
        _, place = heapq.heappop(waiting)
        given[place] += 1
        if given[place] < limits[place]:
            heapq.heappush(waiting, (start[place] + (given[place] + 1) * seconds[place], place))
    return tuple(given)


def _most_of_it(total: int, start: Sequence[float], seconds: Sequence[float], limits: Sequence[int]) -> list[int]:
    """What the first of the ``total`` go to, all but a few: to each device those that it has done by a time at which
    all together have done no more. That is when they would be done if pieces could be cut."""
    given = [1] * len(seconds)
    free = list(range(len(seconds)))
    while free:
        left = total - sum(given[place] for place in range(len(seconds)) if place not in free)
        busy = list(free)
        while True:  # without those that do not even get their first done by then
            rate = sum(1 / seconds[place] for place in busy)
            until = (left - (len(free) - len(busy)) + sum(start[place] / seconds[place] for place in busy)) / rate
            until -= abs(until) * _ROUNDING
            keeping = [place for place in busy if start[place] + seconds[place] <= until]
            if len(keeping) == len(busy):
                break
            busy = keeping
            if not busy:
                return given
        done = {place: int((until - start[place]) / seconds[place]) for place in busy}
        full = [place for place in busy if done[place] >= limits[place]]
        for place in full:
            given[place] = limits[place]
        if not full:
            for place in busy:
                given[place] = max(1, done[place])
            break
        free = [place for place in free if place not in full]
    return given
