"""How the heads and experts of a layer are given out to unequal devices."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


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
    given = [1] * count
    start = [0.0] * count if before is None else before
    waiting = [(start[place] + 2 * each, place) for place, each in enumerate(seconds) if limits[place] > 1]
    heapq.heapify(waiting)
    for _ in range(total - count):
        _, place = heapq.heappop(waiting)
        given[place] += 1
        if given[place] < limits[place]:
            heapq.heappush(waiting, (start[place] + (given[place] + 1) * seconds[place], place))
    return tuple(given)
