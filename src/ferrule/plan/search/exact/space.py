"""The best plans over few hosts: all subsets, groups, orders and cuts of the documented space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ferrule.plan.cut import Floats, StageTable
from ferrule.plan.obstacle import stage_obstacle
from ferrule.plan.plan import Plan, fellows
from ferrule.plan.remembered import remembered
from ferrule.plan.search.exact.free_sets import Counts
from ferrule.plan.search.exact.memory import have_room
from ferrule.plan.search.exact.order import Choice, Found, Option, OrderSearch
from ferrule.plan.search.stages.classes import interchangeable
from ferrule.plan.search.stages.costs import Cutting, Measure, StageCosts
from ferrule.plan.search.stages.cuttings import cuttings_of

CLOSE = 5e-3
"""Tolerance to the optimum for the throughput of a pipeline whose slowest stage and hops both matter."""
_ROUNDING = 1e-9
Widths = range
"""Of how many devices a stage may be."""


@dataclass(frozen=True, eq=False)
class _Group:
    counts: Counts
    cutting: Cutting


class ExactSearch:
    """Plans over the devices of ``costs.cluster``, of which there should be few, for its question.
    ``all_used``: only such as use every device."""

    def __init__(self, costs: StageCosts, *, all_used: bool = False) -> None:
        self.costs, self.question = costs, costs.question
        self.runnable, self.all_used = costs.question.runnable_only, all_used
        self.classes = interchangeable(costs.cluster)
        self.available = tuple(map(len, self.classes))
        self.groups = list(self._groups())

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

    @remembered
    def choice(self, measure: Measure, widths: Widths) -> tuple[Choice, list[_Group]]:
        """All groups of so many devices as stages."""
        groups = self._undominated(measure, widths)
        options = tuple(Option(group.counts, self._table(group.cutting, measure)) for group in groups)
        kinds = list(dict.fromkeys(group.counts for group in groups))
        place_of = {kind: place for place, kind in enumerate(kinds)}
        places = np.array([place_of[group.counts] for group in groups], dtype=np.intp)
        return Choice(self.available, options, *self._hops(kinds, measure), places), groups

    def _undominated(self, measure: Measure, widths: Widths) -> list[_Group]:
        """Without those that have no room for a layer, or are no better than another way to cut the same devices."""
        by_counts: dict[Counts, list[tuple[_Group, StageTable]]] = {}
        for group in self.groups:
            if len(group.cutting.devices) in widths:
                table = self._table(group.cutting, measure)
                others = by_counts.setdefault(group.counts, [])
                if table.has_room and not any(table.no_better_than(other) for _, other in others):
                    others[:] = [(kept, other) for kept, other in others if not other.no_better_than(table)]
                    others.append((group, table))
        return [group for others in by_counts.values() for group, _ in others]

    @remembered
    def _table(self, cutting: Cutting, measure: Measure) -> StageTable:
        return self.costs.table(cutting, measure)

    def _hops(self, kinds: Sequence[Counts], measure: Measure) -> tuple[Floats, Floats]:
        """From each kind of group to each; of devices of one class, from one to another."""
        seconds = np.full((2, len(self.classes), len(self.classes)), np.inf)
        for (i, here), (j, there) in itertools.product(enumerate(self.classes), repeat=2):
            a, b = here[:1], there[-1:]
            if a != b:
                seconds[:, i, j] = [self.costs.hop(a, b, measure, last=last) for last in (False, True)]
        members = [np.array([i for i, count in enumerate(kind) for _ in range(count)], dtype=np.intp) for kind in kinds]
        return _between_groups(members, seconds[0]), _between_groups(members, seconds[1])

    def has_room(self) -> bool:
        """Whether any plan fits, whatever it takes."""
        if any(all(use.all_held <= use.room for use in self.costs.memory(group.cutting)) for group in self.groups):
            return True
        count = sum(self.available)
        several = [group for group in self.groups if len(group.cutting.devices) < count]
        return have_room(self.available, [(group.counts, self.costs.memory(group.cutting)) for group in several])

    def plan(self, found: Found, groups: Sequence[_Group]) -> Plan:
        """With the names of devices in the places of classes."""
        used, first, stages = self._nothing, 0, []
        for index, last in zip(found.options, found.ends, strict=True):
            group = groups[index]
            devices = self._devices(group.counts, used)
            stages.append(replace(group.cutting, devices=devices).stage(first, last))
            used = tuple(a + b for a, b in zip(used, group.counts, strict=True))
            first = last
        return Plan(tuple(stages))

    def one_stage(self, measure: Measure) -> Iterator[tuple[float, float, Plan]]:
        """Every group with the whole model: seconds, bytes missing (on the device that misses most), plan."""
        for group in self.groups:
            if self.all_used and group.counts != self.available:
                continue
            table = self._table(group.cutting, measure)
            seconds = table.all_seconds + self.costs.announcement(group.cutting)
            missing = max(0.0, *(use.all_held - use.room for use in table.memory))
            yield seconds, missing, Plan((group.cutting.stage(0, table.layers),))

    def added(
        self, measure: Measure, widths: Widths, stages: int | None = None, bound: float = math.inf
    ) -> tuple[float, Plan] | None:
        """The pipeline of stages of so many devices whose stages and hops add up to the least, if to less than
        ``bound``."""
        if (stages or 2) * widths[0] > sum(self.available):
            return None
        choice, groups = self.choice(measure, widths)
        if not groups:
            return None
        found = OrderSearch(choice, stages=stages, all_used=self.all_used).best(bound=bound)
        return None if found is None else (found.seconds, self.plan(found, groups))

    def overlapped(
        self, measure: Measure, batches: int, stages: int, widths: Widths, bound: float = math.inf
    ) -> tuple[float, Plan] | None:
        """The pipeline of so many stages that is done first with a step of ``batches`` batches, if in less than
        ``bound``: that takes as long as its slowest stage needs for all of them, or one batch for all stages and hops,
        whichever is more."""
        if stages * widths[0] > sum(self.available):
            return None
        choice, groups = self.choice(measure, widths)
        if not groups:
            return None
        search = OrderSearch(choice, stages=stages, all_used=self.all_used)
        steps = _Steps(search, batches, self.costs.runtime.message_seconds)
        found = steps.quickest(bound)
        return None if found is None else (steps.seconds(found), self.plan(found, groups))

    def may_overlap(self, measure: Measure, batches: int, stages: int, widths: Widths, bound: float) -> bool:
        """Whether a step of so many batches through so many stages may take less than ``bound``."""
        if not self.choice(measure, widths)[1]:
            return False
        search = self._bounds(measure, widths, stages if stages == 2 else None)
        return _Steps(search, batches, self.costs.runtime.message_seconds).allowed(bound)

    @remembered
    def _bounds(self, measure: Measure, widths: Widths, stages: int | None) -> OrderSearch:
        return OrderSearch(self.choice(measure, widths)[0], stages=stages, all_used=self.all_used)


@dataclass(frozen=True)
class _Steps:
    """Steps of ``batches`` batches; ``work``: what a stage does for its messages."""

    search: OrderSearch
    batches: int
    work: float

    def seconds(self, found: Found) -> float:
        spans = zip(found.options, (0, *found.ends[:-1]), found.ends, strict=True)
        options = self.search.choice.options
        slowest = max(float(options[index].table.runs[a, b]) for index, a, b in spans)
        return max(found.seconds, self.batches * (slowest + self.work))

    def quickest(self, bound: float) -> Found | None:
        """A step of less than T has no stage that takes more than T / batches, and adds up to less than T. The least T
        for which there is a sequence is enclosed until its ends are `CLOSE`."""
        low = self._allowed_from(bound)
        best: Found | None = None
        high, above = bound, CLOSE / 2
        while high > low * (1 + CLOSE):
            tried = min(high, low * (1 + above) if above < 1 else high) if best is None else (low + high) / 2
            found = self.search.best(bound=tried, cap=self._cap(tried))
            if found is not None:
                best, high = found, min(tried, self.seconds(found))
            else:
                low, above = tried, above * 2
        return best

    def _cap(self, seconds: float) -> float:
        return (seconds / self.batches - self.work) * (1 + _ROUNDING)

    def allowed(self, seconds: float) -> bool:
        return self._least(seconds) < seconds

    def _least(self, seconds: float) -> float:
        """Steps of less than ``seconds`` take no less than this. Without an order and for any number of stages but
        two: quick, and mostly as good."""
        return self.search.lower_bound(self._cap(seconds), counted=self.search.stages == 2)

    def _allowed_from(self, bound: float) -> float:
        """Below this nothing is `allowed`."""
        if self.batches == 1:
            return self.search.lower_bound()
        if math.isinf(bound):
            low = self.search.lower_bound(counted=self.search.stages == 2)
            if math.isinf(low):
                return low
            high = low * 2
            while (least := self._least(high)) >= high and high < low * self.batches * 4:
                low, high = high, high * 2
            low = max(low, min(least, high))  # what is quicker is no quicker than this bound
        else:
            low, high = self._least(bound), bound
            if low >= high:
                return high
        while high > low * (1 + CLOSE / 2):
            middle = (low + high) / 2
            least = self._least(middle)
            # What is quicker than the middle is no quicker than its bound either.
            low, high = (middle, high) if least >= middle else (max(low, least), middle)
        return low


def _between_groups(members: Sequence[NDArray[np.intp]], seconds: Floats) -> Floats:
    """The slowest of the messages that the devices of a group get from their fellows of another. ``seconds``: by
    class."""
    found = np.zeros((len(members), len(members)))
    by_width: dict[int, list[int]] = {}
    for place, each in enumerate(members):
        by_width.setdefault(len(each), []).append(place)
    for width, here in by_width.items():
        senders = np.stack([members[place] for place in here])
        for other, there in by_width.items():
            receivers = np.stack([members[place] for place in there])
            sending = senders[:, fellows(other, width)]
            found[np.ix_(here, there)] = seconds[sending[:, None, :], receivers[None, :, :]].max(axis=2)
    return found
