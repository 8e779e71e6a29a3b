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
        radix = np.cumprod([1, *(count + 1 for count in available[:-1])])
        states = np.array(list(itertools.product(*(range(count + 1) for count in available))))
        states = states[np.argsort(states.sum(axis=1), kind="stable")]
        place_of = np.empty(len(states), dtype=np.intp)
        place_of[states @ radix] = np.arange(len(states))
        codes = options @ radix
        self.sizes = states.sum(axis=1)
        self.all = len(states) - 1
        self.fitting: list[Places] = [np.flatnonzero((options <= free).all(axis=1)) for free in states]
        """By set: the options that it allows."""
        self.left: list[Places] = [
            place_of[free @ radix - codes[those]] for free, those in zip(states, self.fitting, strict=True)
        ]
        """The same order: the set that each leaves."""
