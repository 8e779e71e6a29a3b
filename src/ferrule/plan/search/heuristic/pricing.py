"""Price of a sequence of stages, their layers cut as well as can be: for hosts of which there are many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ferrule.plan.cut import StageTable, cut_layers
from ferrule.plan.obstacle import stage_obstacle
from ferrule.plan.plan import Plan
from ferrule.plan.question import Question
from ferrule.plan.remembered import remembered
from ferrule.plan.search.stages.classes import Traits, pair_traits, traits
from ferrule.plan.search.stages.costs import Cutting, Measure, StageCosts
from ferrule.plan.search.stages.cuttings import cuttings_of

NO_CABLE = 1.0
"""Seconds for a hop that others would have to relay, so that it is avoided."""
_NO_ROOM = 1e9
_MOST_CUTTINGS = 3
_ROUNDING = 1e-9

Groups = tuple[Cutting, ...]


@dataclass(frozen=True)
class Priced:
    """``goal``: the objective's figure, the less the better; more than any such where there is no room, by the layers
    that are left over. ``plan``: None there."""

    goal: float
    groups: Groups
    plan: Plan | None = None


class Pricing:
    """Devices and cables that are alike cost the same, so each kind is worked out once."""

    def __init__(self, question: Question) -> None:
        self.question, self.model, self.cluster = question, question.model, question.cluster
        self.runtime, self.runnable = question.runtime, question.runnable_only
        self.objective = objective = question.objective
        self.costs = StageCosts(question, everywhere=False)
        self.many = objective in ("throughput", "energy")
        self.alone = Measure("prompt" if objective == "ttft" else "token")
        self._tables: dict[tuple[object, ...], StageTable] = {}
        self._cuttings: dict[tuple[object, ...], list[Cutting]] = {}

    def measure(self, stages: int) -> tuple[Measure, int]:
        """Of a step: what is timed, and how many batches there are."""
        if not self.many:
            return self.alone, 1
        batches, each = self.question.batches(stages)
        return Measure("token", each), batches

    @remembered
    def like(self, names: tuple[str, ...]) -> tuple[object, ...]:
        """The same for devices of the same kinds with the same cables between them."""
        cables = (pair_traits(self.cluster, a, b) for a, b in itertools.combinations(names, 2))
        kinds: tuple[Traits, ...] = tuple(traits(self.cluster.by_name[name]) for name in names)
        return kinds, tuple(cables)

    def table(self, cutting: Cutting, measure: Measure) -> StageTable:
        key = (self.like(cutting.devices), cutting.shares, cutting.experts, cutting.exchange, measure)
        if key not in self._tables:
            self._tables[key] = self.costs.table(cutting, measure)
        return self._tables[key]

    def cuttings(self, names: Sequence[str]) -> list[Cutting]:
        """A few quick ways to cut layers over some devices that have room for one, the quickest for its room first."""
        names = tuple(names)
        key = self.like(names)
        if key not in self._cuttings:
            every = cuttings_of(self.costs, names)
            if self.runnable:
                every = [cutting for cutting in every if stage_obstacle(self.model, cutting.stage(0, 1)) is None]
            chosen: list[Cutting] = []
            for cutting in sorted((cutting for cutting in every if self.room(cutting)), key=self.slowness):
                table = self.table(cutting, self.alone)
                if not any(table.no_better_than(self.table(other, self.alone)) for other in chosen):
                    chosen.append(cutting)
            self._cuttings[key] = chosen[:_MOST_CUTTINGS]
        return [replace(cutting, devices=names) for cutting in self._cuttings[key]]

    def seconds(self, group: Cutting) -> float:
        """Of all layers."""
        table = self.table(group, self.alone)
        return float(table.before[-1]) + table.always

    def room(self, group: Cutting) -> int:
        """Number of layers that fit."""
        table = self.table(group, self.alone)
        if not math.isfinite(table.always):
            return 0
        if table.all_fit:
            return table.layers
        most = int((table.reach - np.arange(table.layers + 1)).max())
        return max(most, table.layers - table.last_from)

    def slowness(self, group: Cutting) -> tuple[float, float]:
        seconds = self.seconds(group)
        return seconds / self.room(group), seconds

    @remembered
    def hop(self, here: tuple[str, ...], there: tuple[str, ...], measure: Measure, *, last: bool = False) -> float:
        return min(self.costs.hop(here, there, measure, last=last), NO_CABLE)

    @remembered
    def price(self, groups: Groups) -> Priced:
        lacking = Priced(_NO_ROOM * (1 + self._left_over(groups)), groups)
        return min(self._cuts(groups), key=lambda priced: priced.goal, default=lacking)

    def _left_over(self, groups: Groups) -> int:
        """Layers for which there is no room if each stage takes all it can."""
        at, layers = 0, self.model.layers
        for place, group in enumerate(groups):
            table = self.table(group, self.alone)
            if place == len(groups) - 1 and at >= table.last_from:
                return 0
            at = int(table.reach[at])
        return layers - at

    def _cuts(self, groups: Groups) -> Iterator[Priced]:
        measure, batches = self.measure(len(groups))
        tables = [self.table(group, measure) for group in groups]
        layers = self.model.layers
        if len(groups) == 1:
            (group,), (table,) = groups, tables
            if table.all_fit and math.isfinite(table.always):
                seconds = table.all_seconds + self.costs.announcement(group)
                yield self._told(groups, (layers,), [seconds], 0.0, batches)
            return
        names = [group.devices for group in groups]
        hops = sum(self.hop(a, b, measure) for a, b in itertools.pairwise(names))
        hops += self.hop(names[-1], names[0], measure, last=True)
        for ends in self._ends(tables, hops, batches):
            spans = zip((0, *ends[:-1]), ends, strict=True)
            times = [float(table.runs[a, b]) for table, (a, b) in zip(tables, spans, strict=True)]
            yield self._told(groups, ends, times, hops, batches)

    def _ends(self, tables: Sequence[StageTable], hops: float, batches: int) -> Iterator[tuple[int, ...]]:
        """The cut with the least sum, and where the slowest stage counts, too, those under two caps on it."""
        added = cut_layers(tables, "sum")
        if added is None:
            return
        yield added.ends
        if batches == 1:
            return
        slowest = cut_layers(tables, "max")
        assert slowest is not None
        least, crossing = slowest.seconds, (added.seconds + hops) / batches - self.runtime.message_seconds
        for cap in dict.fromkeys((least, max(least, crossing))):
            capped = cut_layers(tables, "sum", cap=cap * (1 + _ROUNDING))
            if capped is not None:
                yield capped.ends

    def _told(self, groups: Groups, ends: tuple[int, ...], times: Sequence[float], hops: float, batches: int) -> Priced:
        work = self.runtime.message_seconds if len(groups) > 1 else 0.0
        step = max(sum(times) + hops, batches * (max(times) + work))
        spans = zip(groups, (0, *ends[:-1]), ends, strict=True)
        plan = Plan(tuple(group.stage(first, last) for group, first, last in spans))
        return Priced(self._watts(groups, times, step, batches) if self.objective == "energy" else step, groups, plan)

    def _watts(self, groups: Groups, times: Sequence[float], step: float, batches: int) -> float:
        """Joules of a step."""
        joules = 0.0
        for group, seconds in zip(groups, times, strict=True):
            for name in group.devices:
                device = self.cluster.by_name[name]
                idle, busy = device.watts_idle or 0.0, device.watts_busy or 0.0
                joules += idle * step + max(0.0, busy - idle) * min(step, batches * seconds)
        return joules
