"""Cost of runs of layers for many stages at once, and the cheapest run that begins or ends at each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ferrule.plan.cut import Floats, StageTable
from ferrule.plan.search.exact.free_sets import Places


@dataclass(frozen=True, eq=False)
class Spans:
    """By stage: ``prefix[l]``: seconds of the layers before l; ``reach[a]``: the last layer before the model's last
    behind which a run from a can end (a: none fits); ``from_start[b]`` and ``to_end[a]``: seconds of a run of the
    first layers, up to b, and of the last ones, from a on (infinite where it does not fit). Not those of all layers."""

    prefix: Floats
    always: Floats
    reach: Places
    from_start: Floats
    to_end: Floats

    @staticmethod
    def of(tables: Sequence[StageTable]) -> Spans:
        layers = tables[0].layers
        prefix = np.stack([table.before for table in tables])
        always, first, last = np.array([(table.always, table.first, table.last) for table in tables]).T
        inner = np.arange(layers + 1)
        from_start = np.where((inner >= 1) & (inner < layers), prefix + (always + first)[:, None], np.inf)
        to_end = np.where((inner >= 1) & (inner < layers), (prefix[:, -1] + always + last)[:, None] - prefix, np.inf)
        reach = np.stack([table.reach for table in tables])
        from_start[inner > reach[:, :1]] = np.inf
        to_end[inner < np.array([table.last_from for table in tables])[:, None]] = np.inf
        return Spans(prefix, always, reach, from_start, to_end)

    @property
    def layers(self) -> int:
        return int(self.prefix.shape[1]) - 1

    def below(self, cap: float) -> Spans:
        """Without runs that take more than ``cap``."""
        limits = self.prefix + (cap - self.always)[:, None]
        reach = np.stack([np.searchsorted(row, limit, "right") for row, limit in zip(self.prefix, limits, strict=True)])
        return replace(
            self,
            reach=np.maximum(np.minimum(self.reach, reach - 1), np.arange(self.layers + 1)),
            from_start=np.where(self.from_start <= cap, self.from_start, np.inf),
            to_end=np.where(self.to_end <= cap, self.to_end, np.inf),
        )

    def least_ahead(self, stages: Places, after: Floats) -> Floats:
        """Of some stages, by layer: the cheapest run that begins there, if what follows it costs ``after``, which is
        used up. Not of the first layers and the last ones."""
        before, (start, end, some) = self.prefix[stages], self._ahead
        found = _least(np.add(after, before, out=after), start[stages], end[stages], some[stages])
        found += self.always[stages, None]
        found -= before
        return found

    def least_behind(self, stages: Places, best: Floats) -> Floats:
        """Of some stages, by layer: the cheapest run that ends before it, if what precedes it costs ``best``. Not of
        the first layers and the last ones."""
        before, (start, end, some) = self.prefix[stages], self._behind
        return _least(best - before, start[stages], end[stages], some[stages]) + self.always[stages, None] + before

    @cached_property
    def _ahead(self) -> tuple[Places, Places, NDArray[np.bool_]]:
        first = np.broadcast_to(np.arange(self.layers + 1) + 1, self.reach.shape)
        return self._ranges(first, np.where(np.arange(self.layers + 1) > 0, self.reach, 0))

    @cached_property
    def _behind(self) -> tuple[Places, Places, NDArray[np.bool_]]:
        places = np.arange(self.layers + 1)
        first = np.stack([np.searchsorted(row[1:], places, "left") + 1 for row in self.reach])
        last = np.broadcast_to(np.where(places < self.layers, places - 1, 0), first.shape)
        return self._ranges(first, last)

    def _ranges(self, first: Places, last: Places) -> tuple[Places, Places, NDArray[np.bool_]]:
        """Places at which `_least` finds the two runs of a power of two that together are first..last."""
        some = first <= last
        power = np.frexp(np.where(some, last - first + 1, 1))[1].astype(np.intp) - 1
        row = self.layers + 1
        start = power * row + np.where(some, first, 0)
        end = power * row + np.where(some, last - (1 << power) + 1, 0)
        return start, end, some

    def runs_to(self, stage: int, end: int) -> Floats:
        """Seconds of each run that ends behind layer ``end``."""
        if end == self.layers:
            whole: Floats = self.to_end[stage]
            return whole
        places = np.arange(self.layers + 1)
        seconds = self.prefix[stage, end] - self.prefix[stage] + self.always[stage]
        runs: Floats = np.where((places < end) & (self.reach[stage] >= end), seconds, np.inf)
        runs[0] = self.from_start[stage, end]
        return runs


def _least(values: Floats, start: Places, end: Places, some: NDArray[np.bool_]) -> Floats:
    """The least of ranges of each row: of all runs of 1, 2, 4, ... values first, then of the two that make the range
    (a sparse table; Bender and Farach-Colton, 2000)."""
    count, size = values.shape
    if not count:
        return values
    powers = int(end.max()) // size + 1
    table = np.empty((count, powers, size))
    table[:, 0] = values
    for power in range(1, powers):
        half = 1 << (power - 1)
        np.minimum(table[:, power - 1, :-half], table[:, power - 1, half:], out=table[:, power, :-half])
        table[:, power, -half:] = table[:, power - 1, -half:]
    rows = (np.arange(count) * (powers * size))[:, None]
    start += rows
    end += rows
    flat = table.reshape(-1)
    found: Floats = flat.take(start)
    np.minimum(found, flat.take(end), out=found)
    found[~some] = math.inf
    return found
