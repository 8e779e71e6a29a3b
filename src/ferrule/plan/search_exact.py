"""The best layouts over few hosts: all subsets, groups, orders and cuts of the documented space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ferrule.plan.layout import Layout, Stage
from ferrule.plan.search_classes import interchangeable
from ferrule.plan.search_costs import Cutting, Measure, StageCosts
from ferrule.plan.search_cut import Floats, StageTable
from ferrule.plan.search_cuttings import cuttings_of
from ferrule.plan.search_obstacle import stage_obstacle
from ferrule.plan.search_order import Choice, Counts, Found, Option, OrderSearch

CLOSE = 5e-3
"""How near to the optimum the throughput of a pipeline must be when both its slowest stage and its hops matter."""
_HALVINGS = 12
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class _Group:
    counts: Counts
    cutting: Cutting


class ExactSearch:
    """Layouts over the devices of ``costs.cluster``, of which there should be few. ``runnable``: only such as the
    built-in engine can run. ``all_used``: only such as use every device."""

    def __init__(self, costs: StageCosts, *, runnable: bool = False, all_used: bool = False) -> None:
        self.costs = costs
        self.runnable, self.all_used = runnable, all_used
        self.classes = interchangeable(costs.cluster)
        self.available = tuple(map(len, self.classes))
        self.groups = list(self._groups())
        self._choices: dict[tuple[Measure, int], tuple[Choice, list[_Group]]] = {}
        self._tables: dict[tuple[Cutting, Measure], StageTable] = {}

    def _groups(self) -> Iterator[_Group]:
        for counts in itertools.product(*(range(count + 1) for count in self.available)):
            if any(counts):
                for cutting in cuttings_of(self.costs, self._devices(counts, self._nothing)):
                    if not self.runnable or stage_obstacle(self.costs.model, cutting.stage(0, 1)) is None:
                        yield _Group(counts, cutting)

    @property
    def _nothing(self) -> Counts:
        return (0,) * len(self.available)

    def _devices(self, counts: Counts, used: Counts) -> tuple[str, ...]:
        """The first devices of each class after those that are ``used``."""
        return tuple(
            name
            for names, count, start in zip(self.classes, counts, used, strict=True)
            for name in names[start : start + count]
        )

    def choice(self, measure: Measure, width: int) -> tuple[Choice, list[_Group]]:
        """All groups of so many devices as stages."""
        key = (measure, width)
        if key not in self._choices:
            groups = self._undominated(measure, width)
            options = tuple(Option(group.counts, self._table(group, measure).runs) for group in groups)
            kinds = list(dict.fromkeys(group.counts for group in groups))
            places = np.array([kinds.index(group.counts) for group in groups], dtype=np.intp)
            hops, back = (each[np.ix_(places, places)] for each in self._hops(kinds, measure))
            self._choices[key] = Choice(self.available, options, hops, back), groups
        return self._choices[key]

    def _undominated(self, measure: Measure, width: int) -> list[_Group]:
        """Without those that are no better than another way to cut the same devices, whatever the layers."""
        by_counts: dict[Counts, list[tuple[_Group, Floats]]] = {}
        for group in self.groups:
            if len(group.cutting.devices) == width:
                runs = self._table(group, measure).runs
                others = by_counts.setdefault(group.counts, [])
                if not any((other <= runs).all() for _, other in others):
                    others[:] = [(kept, other) for kept, other in others if not (runs <= other).all()]
                    others.append((group, runs))
        return [group for others in by_counts.values() for group, runs in others if np.isfinite(runs).any()]

    def _table(self, group: _Group, measure: Measure) -> StageTable:
        key = (group.cutting, measure)
        if key not in self._tables:
            self._tables[key] = self.costs.table(group.cutting, measure)
        return self._tables[key]

    def _hops(self, kinds: Sequence[Counts], measure: Measure) -> tuple[Floats, Floats]:
        """From each kind of group to each that can stand beside it."""
        counts = np.array(kinds, dtype=np.int64).reshape(-1, len(self.available))
        beside = (counts[:, None, :] + counts[None, :, :] <= np.array(self.available)).all(axis=2)
        hops, back = np.zeros(beside.shape), np.zeros(beside.shape)
        for a, b in np.argwhere(beside):
            first, second = self._devices(kinds[a], self._nothing), self._devices(kinds[b], kinds[a])
            hops[a, b] = self.costs.hop(first, second, measure)
            back[a, b] = self.costs.back(first, second, measure)
        return hops, back

    def layout(self, found: Found, groups: Sequence[_Group]) -> Layout:
        """With the names of devices in the places of classes."""
        used, first, stages = self._nothing, 0, []
        for index, last in zip(found.options, found.ends, strict=True):
            group = groups[index]
            devices = self._devices(group.counts, used)
            stages.append(Stage(devices, first, last, group.cutting.shares, group.cutting.experts))
            used = tuple(a + b for a, b in zip(used, group.counts, strict=True))
            first = last
        return Layout(tuple(stages))

    def one_stage(self, measure: Measure) -> Iterator[tuple[float, float, Layout]]:
        """Every group with the whole model: seconds, bytes missing (on the device that misses most), layout."""
        for group in self.groups:
            if self.all_used and group.counts != self.available:
                continue
            table = self._table(group, measure)
            seconds = (
                float(table.by_layer.sum())
                + table.always
                + table.first
                + table.last
                + self.costs.announcement(group.cutting)
            )
            missing = max(0.0, *(use.held(0, table.layers) - use.room for use in table.memory))
            yield (
                seconds + self.costs.announcement(group.cutting),
                missing,
                Layout((group.cutting.stage(0, table.layers),)),
            )

    def added(self, measure: Measure, width: int, stages: int | None = None) -> Layout | None:
        """The pipeline of stages of ``width`` devices whose stages and hops add up to the least."""
        choice, groups = self.choice(measure, width)
        if not groups or (stages or 2) * width > sum(self.available):
            return None
        found = OrderSearch(choice, stages=stages, all_used=self.all_used).best()
        return None if found is None else self.layout(found, groups)

    def overlapped(
        self, measure: Measure, batches: int, stages: int, width: int, bound: float = math.inf
    ) -> tuple[float, Layout] | None:
        """The pipeline of so many stages of ``width`` devices that is done first with a step of ``batches`` batches,
        if in less than ``bound``: that takes as long as its slowest stage needs for all of them, or one batch for all
        stages and hops, whichever is more."""
        choice, groups = self.choice(measure, width)
        if not groups or stages * width > sum(self.available):
            return None
        work = self.costs.runtime.message_seconds
        adding = OrderSearch(choice, stages=stages, all_used=self.all_used)
        best = adding.best(bound=bound)
        if best is None:
            return None  # one batch alone takes too long
        if (most := _seconds(choice, best, batches, work)) > best.seconds:
            limit = min(bound, most * (1 + _ROUNDING)) / batches - work
            slowest = OrderSearch(choice, "max", stages=stages, all_used=self.all_used).best(bound=limit)
            if slowest is not None:
                best = _between(adding, batches, work, slowest.seconds, best)
        seconds = _seconds(choice, best, batches, work)
        return (seconds, self.layout(best, groups)) if seconds < bound else None


def _seconds(choice: Choice, found: Found, batches: int, work: float) -> float:
    """Of a step; ``work``: what a stage does for its messages."""
    spans = zip(found.options, (0, *found.ends[:-1]), found.ends, strict=True)
    slowest = max(float(choice.options[index].runs[a, b]) for index, a, b in spans)
    return max(found.seconds, batches * (slowest + work))


def _between(adding: OrderSearch, batches: int, work: float, low: float, best: Found) -> Found:
    """What is best when the sum and the slowest stage count: the lower the cap on every stage, the longer the sum, so
    the best is where they cross. No stage can be held to less than ``low``."""
    seconds = _seconds(adding.choice, best, batches, work)
    cap, high, least = low, seconds / batches - work, batches * (low + work)
    for _ in range(_HALVINGS):
        found = adding.best(cap=cap * (1 + _ROUNDING), bound=seconds)
        if found is not None and (better := _seconds(adding.choice, found, batches, work)) < seconds:
            best, seconds = found, better
        if found is not None and found.seconds <= batches * (cap + work):
            high = cap
        else:
            low = cap  # with a lower one the sum is longer still
        if high <= low * (1 + CLOSE) or seconds <= least * (1 + CLOSE):
            break
        cap = (low + high) / 2
    return best
