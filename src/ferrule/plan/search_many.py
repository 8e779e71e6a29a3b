"""Layouts worth a prediction over many hosts: a heuristic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ferrule.plan.cluster import ClusterSpec
from ferrule.plan.layout import Layout, Objective, Stage, Workload
from ferrule.plan.model import ModelSpec
from ferrule.plan.runtime import Runtime
from ferrule.plan.search_classes import Traits, link_traits, traits
from ferrule.plan.search_costs import Cutting, Measure, StageCosts
from ferrule.plan.search_cut import Aim, StageTable, cut_layers
from ferrule.plan.search_cuttings import cuttings_of
from ferrule.plan.search_exact import ExactSearch
from ferrule.plan.search_few import Layouts, best_of_each
from ferrule.plan.search_obstacle import stage_obstacle
from ferrule.plan.search_ring import Hop, around, nearest_neighbours, shorter_ring

POOL = 8
_POOLS = 3
_SEEDS = 8
_WIDTHS = (1, 2, 3, 4, 6, 8)
_WIDE = (5, 6, 7, 8, 12, 16)
_MOST_STAGES = 96
_LENGTHS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""How many more stages than the fewest that have room are tried, as factors."""
_LOOKED_AT = 64
_NO_CABLE = 1.0
"""Seconds for a hop that others would have to relay, so that it is avoided."""


def many_hosts(
    model: ModelSpec,
    cluster: ClusterSpec,
    work: Workload,
    objective: Objective,
    runtime: Runtime,
    *,
    runnable: bool,
    pool: int = POOL,
) -> Layouts:
    """1. The exact search over up to three pools of ``pool`` hosts that are quick, roomy, or near each other. 2. Hosts
    put together to groups of 1 to 8 near ones; pipelines of the best groups, around a short ring, their layers
    cut exactly."""
    search = _ManySearch(model, cluster, work, objective, runtime, runnable=runnable)
    found = [*search.single_hosts(), *search.pools(pool), *search.wide(pool)]
    for width in _WIDTHS:
        found += search.pipelines(width)
    note = f"{len(cluster.devices)} hosts: found by a heuristic, which may miss the best plan"
    return Layouts(list(dict.fromkeys(found)), False, (note,))


class _ManySearch:
    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        work: Workload,
        objective: Objective,
        runtime: Runtime,
        *,
        runnable: bool,
    ) -> None:
        self.model, self.cluster, self.work, self.objective, self.runtime = model, cluster, work, objective, runtime
        self.runnable = runnable
        self.costs = StageCosts(model, cluster, work, runtime, everywhere=False)
        self.alone = Measure("prompt" if objective == "ttft" else "token")
        self.many = objective in ("throughput", "energy")
        self.near: dict[str, list[tuple[float, str]]] = {device.name: [] for device in cluster.devices}
        for link in cluster.links:
            cost = link.alpha + model.hidden_bytes / link.bandwidth
            for here, there in (link.between, link.between[::-1]):
                self.near[here].append((cost, there))
        self._tables: dict[tuple[object, ...], StageTable] = {}
        self._cut_ways: dict[tuple[Traits, ...], list[Cutting]] = {}
        self._hop_seconds: dict[tuple[object, ...], float] = {}
        self.speed = {name: self._whole_seconds(name) for name in self.near}
        self.names = sorted(self.near, key=lambda name: (self.speed[name], name))

    def _whole_seconds(self, name: str) -> float:
        table = self.table(Cutting((name,)), self.alone)
        return float(table.by_layer.sum()) + table.first + table.last

    def table(self, cutting: Cutting, measure: Measure) -> StageTable:
        """Devices and links that are alike cost the same."""
        names = cutting.devices
        like: tuple[Traits, ...] = tuple(traits(self.cluster.by_name[name]) for name in names)
        cables = tuple(link_traits(self.cluster, a, b) for at, a in enumerate(names) for b in names[at + 1 :])
        key = (like, cables, cutting.shares, cutting.experts, measure)
        if key not in self._tables:
            self._tables[key] = self.costs.table(cutting, measure)
        return self._tables[key]

    def single_hosts(self) -> list[Layout]:
        """One of each kind."""
        first: dict[Traits, str] = {}
        for name in self.names:
            first.setdefault(traits(self.cluster.by_name[name]), name)
        quickest = list(first.values())[:_SEEDS]
        roomiest = sorted(first.values(), key=lambda name: (-self.cluster.by_name[name].memory, name))[:_SEEDS]
        return [Layout((Stage((name,), 0, self.model.layers),)) for name in dict.fromkeys(quickest + roomiest)]

    def pools(self, size: int) -> list[Layout]:
        """Around each seed, with those near it."""
        seen: dict[tuple[object, ...], None] = {}
        found: list[Layout] = []
        for seed in self._seeds():
            pool = self._around(seed, size, set(self.near))
            shape = tuple(
                (traits(self.cluster.by_name[a]), *(link_traits(self.cluster, a, b) for b in pool)) for a in pool
            )
            if shape in seen or len(seen) == _POOLS:
                continue
            seen[shape] = None
            part = self.cluster.among(sorted(pool))
            costs = StageCosts(self.model, part, self.work, self.runtime, everywhere=False)
            found += best_of_each(ExactSearch(costs, runnable=self.runnable), self.work, self.objective)
        return found

    def wide(self, pool: int) -> list[Layout]:
        """More hosts than a pool holds as one stage."""
        found: list[Layout] = []
        for seed in self._seeds():
            for width in (width for width in _WIDE if pool < width <= len(self.near)):
                names = sorted(self._around(seed, width, set(self.near)))
                ways = [way for way in self._ways(names) if self._room(way) == self.model.layers]
                if len(names) == width and ways:
                    best = min(ways, key=self._seconds)
                    found.append(Layout((best.stage(0, self.model.layers),)))
        return found

    def _seeds(self) -> list[str]:
        """The quickest host, the roomiest and the best connected one."""
        roomiest = min(self.names, key=lambda name: (-self.cluster.by_name[name].memory, self.speed[name], name))
        connected = min(self.names, key=lambda name: (self._nearness(name), self.speed[name], name))
        return list(dict.fromkeys((self.names[0], roomiest, connected)))

    def _nearness(self, name: str) -> float:
        nearest = sorted(cost for cost, _ in self.near[name])[: POOL - 1]
        return sum(nearest) if len(nearest) == POOL - 1 else math.inf

    def _around(self, seed: str, size: int, free: set[str]) -> list[str]:
        """The seed and others that are ``free``: each time the nearest to any of them, the quicker first."""
        pool, best = [seed], {name: cost for cost, name in self.near[seed] if name in free}
        while len(pool) < size and best:
            name = min(best, key=lambda name: (best[name], self.speed[name], name))
            del best[name]
            pool.append(name)
            for cost, other in self.near[name]:
                if other in free and other not in pool:
                    best[other] = min(cost, best.get(other, math.inf))
        return pool

    def pipelines(self, width: int) -> list[Layout]:
        """The best two of that width by what the tables say."""
        groups = self._groups(width)
        found: dict[Layout, float] = {}
        for stages in self._lengths(groups):
            batches = min(stages, self.work.concurrency) if self.many and self.runtime.batches else 1
            batch = -(-self.work.concurrency // batches) if self.many else 1
            measure = Measure("token", batch) if self.many else self.alone
            for chosen in (groups[:stages], self._chain(groups, stages, measure)):
                order = self._ring(chosen, measure)
                for aim in ("sum", "max") if self.many else ("sum",):
                    found.update(self._cut(order, measure, batches, aim))
        return sorted(found, key=lambda layout: (found[layout], layout.devices))[:2]

    def _cut(self, order: list[Cutting], measure: Measure, batches: int, aim: Aim) -> dict[Layout, float]:
        """The layout, and seconds of a step."""
        tables = [self.table(group, measure) for group in order]
        cut = cut_layers(tables, aim)
        if cut is None:
            return {}
        spans = list(zip((0, *cut.ends[:-1]), cut.ends, strict=True))
        times = [float(table.runs[a, b]) for table, (a, b) in zip(tables, spans, strict=True)]
        hops = around(range(len(order)), *self._hops(order, measure))
        layout = Layout(tuple(group.stage(a, b) for group, (a, b) in zip(order, spans, strict=True)))
        return {layout: max(sum(times) + hops, batches * (max(times) + self.runtime.message_seconds))}

    def _groups(self, width: int) -> list[Cutting]:
        """Disjoint ones that have room for a layer, each of the quickest host that is left and those near it; the
        quickest first."""
        free = set(self.near)
        found: list[Cutting] = []
        for seed in self.names:
            if seed not in free:
                continue
            if len(found) == _MOST_STAGES:
                break
            free.discard(seed)
            names = [seed] if width == 1 else self._around(seed, width, free)
            if len(names) == width:
                free -= set(names)
                ways = [way for way in self._ways(sorted(names)) if self._room(way)]
                if ways:
                    found.append(min(ways, key=lambda way: (self._seconds(way) / self._room(way), self._seconds(way))))
        return sorted(found, key=lambda group: (self._seconds(group), -self._room(group), group.devices))

    def _ways(self, names: Sequence[str]) -> list[Cutting]:
        """Ways to cut are the same for devices that are alike."""
        like = tuple(traits(self.cluster.by_name[name]) for name in names)
        if like not in self._cut_ways:
            ways = cuttings_of(self.costs, names)
            if self.runnable:
                ways = [way for way in ways if stage_obstacle(self.model, way.stage(0, 1)) is None]
            self._cut_ways[like] = ways
        return [Cutting(tuple(names), way.shares, way.experts) for way in self._cut_ways[like]]

    def _seconds(self, group: Cutting) -> float:
        table = self.table(group, self.alone)
        return float(table.by_layer.sum()) + table.always

    def _room(self, group: Cutting) -> int:
        """How many layers fit."""
        runs = self.table(group, self.alone).runs
        return int(np.isfinite(runs).sum(axis=1).max())

    def _lengths(self, groups: Sequence[Cutting]) -> list[int]:
        """Numbers of stages to try: the fewest that have room, if those with the most are taken, and more."""
        most = min(len(groups), _MOST_STAGES, self.model.layers)
        rooms = [self._room(group) for group in groups]
        starts = []
        for order in (sorted(rooms, reverse=True), rooms):
            stages = 2
            while stages < most and sum(order[:stages]) < self.model.layers:
                stages += 1
            starts.append(stages)
        tried = {math.ceil(start * factor) for start in starts for factor in _LENGTHS}
        return sorted(stages for stages in tried if 2 <= stages <= most)

    def _chain(self, groups: Sequence[Cutting], stages: int, measure: Measure) -> list[Cutting]:
        """From the quickest on, each time the one that adds least per layer it has room for, its hop included."""
        left = list(groups)
        chain = [left.pop(0)]
        per_layer = {group: self._seconds(group) / self.model.layers for group in groups}
        while len(chain) < stages:
            last = chain[-1].devices

            def added(group: Cutting, last: tuple[str, ...] = last) -> float:
                return self._hop(last, group.devices, measure) / self._room(group) + per_layer[group]

            following = min(left[:_LOOKED_AT], key=added)
            left.remove(following)
            chain.append(following)
        return chain

    def _ring(self, chosen: Sequence[Cutting], measure: Measure) -> list[Cutting]:
        hop, back = self._hops(chosen, measure)
        places = range(len(chosen))
        if len({hop(a, b) for a in places for b in places if a != b}) <= 1:
            return list(chosen)
        order = shorter_ring(nearest_neighbours(places, 0, hop), hop, back)
        return [chosen[place] for place in order]

    def _hops(self, groups: Sequence[Cutting], measure: Measure) -> tuple[Hop, Hop]:
        def hop(a: int, b: int) -> float:
            return self._hop(groups[a].devices, groups[b].devices, measure)

        def back(a: int, b: int) -> float:
            return self._hop(groups[a].devices, groups[b].devices, measure, last=True)

        return hop, back

    def _hop(self, here: tuple[str, ...], there: tuple[str, ...], measure: Measure, *, last: bool = False) -> float:
        key = (here, there, measure, last)
        if key not in self._hop_seconds:
            seconds = (self.costs.back if last else self.costs.hop)(here, there, measure)
            self._hop_seconds[key] = min(seconds, _NO_CABLE)
        return self._hop_seconds[key]
