"""The sets of devices that are still free, and which stages each of them allows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Counts = tuple[int, ...]
Places = NDArray[np.intp]


class FreeSets:
    """All sets of no more than ``available`` devices of each class of interchangeable ones; the smaller first.
    ``counts``: of each option for a stage, how many devices of each class it takes."""

    def __init__(self, available: Counts, counts: Sequence[Counts]) -> None:
        options = np.array(counts).reshape(len(counts), len(available))
        kinds, kind_of = np.unique(options, axis=0, return_inverse=True)
        kind = kind_of.reshape(-1)
        radix = np.cumprod([1, *(count + 1 for count in available[:-1])])
        states = np.array(list(itertools.product(*(range(count + 1) for count in available))))
        states = states[np.argsort(states.sum(axis=1), kind="stable")]
        place_of = np.empty(len(states), dtype=np.intp)
        place_of[states @ radix] = np.arange(len(states))
        allowed: NDArray[np.bool_] = np.all(kinds[None, :, :] <= states[:, None, :], axis=2)
        left = place_of[np.where(allowed, (states @ radix)[:, None] - kinds @ radix, 0)]
        self.sizes = states.sum(axis=1)
        self.all = len(states) - 1
        self.fitting: list[Places] = [np.flatnonzero(each[kind]) for each in allowed]
        """By set: the options that it allows."""
        self.left: list[Places] = [each[kind[those]] for each, those in zip(left, self.fitting, strict=True)]
        """The same order: the set that each leaves."""
