"""Shares of a layer's heads and experts for unequal devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
    number = np.arange(2, total + 1)  # of a device's pieces after its first one
    done = np.array(before or [0.0] * count)[:, None] + number * np.array(seconds)[:, None]
    done[number > np.array(limits)[:, None]] = np.inf
    first = np.argsort(done, axis=None, kind="stable")[: total - count]
    given = 1 + np.bincount(first // max(1, number.size), minlength=count)
    return tuple(given.tolist())
