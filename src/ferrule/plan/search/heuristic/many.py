"""Plans worth a prediction over many hosts: a heuristic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ferrule.plan.plan import Plan, Stage
from ferrule.plan.question import Question
from ferrule.plan.search.exact.few import Plans, best_of_each
from ferrule.plan.search.exact.space import ExactSearch
from ferrule.plan.search.heuristic.improve import Improver
from ferrule.plan.search.heuristic.pricing import Groups, Priced, Pricing
from ferrule.plan.search.heuristic.ring import Hop, nearest_neighbours, shorter_ring
from ferrule.plan.search.stages.classes import Traits, pair_traits, traits
from ferrule.plan.search.stages.costs import Cutting, Measure, StageCosts

POOL = 6
_POOLS = 3
_SEEDS = 8
_WIDTHS = (1, 2, 3, 4, 6, 8)
_WIDE = (2, 3, 4, 5, 6, 7, 8, 12, 16)
_NARROW = (1, 2, 4)
_REGION = 16
_MOST_STAGES = 96
_LENGTHS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Factors by which more stages than the fewest that have room are tried."""
_LOOKED_AT = 64
_TOLD = 12
_STARTS = 6
_CHANGES = 1200
"""So many changes of the best starts are tried in all."""


def many_hosts(question: Question, *, pool: int = POOL) -> Plans:
    """1. The exact search over up to three pools of ``pool`` hosts that are quick, roomy, or near each other. 2. Hosts
    put together to groups of 1 to 16 near ones: as one stage, and pipelines of the best groups, around a short ring,
    their layers cut exactly. 3. The best of these, changed host by host until nothing helps."""
    search = _ManySearch(question)
    built = [*search.wide(), *(each for width in _WIDTHS for each in search.pipelines(width, search.names))]
    built += [each for hosts in search.regions() for width in _NARROW for each in search.pipelines(width, hosts)]
    pooled = search.pools(pool)
    improved = search.improved([*built, *search.priced(pooled)])
    best = sorted(built, key=lambda priced: priced.goal)[:_TOLD]
    found = [*search.single_hosts(), *pooled, *(each.plan for each in (*best, *improved) if each.plan)]
    note = f"{len(question.cluster.devices)} hosts: found by a heuristic, which may miss the best plan"
    return Plans(list(dict.fromkeys(found)), False, (note,))


class _ManySearch:
    def __init__(self, question: Question) -> None:
        self.question, self.model, self.cluster = question, question.model, question.cluster
        self.pricing = Pricing(question)
        self.near: dict[str, list[tuple[float, str]]] = {device.name: [] for device in self.cluster.devices}
        for pair in self.cluster.pairs:
            cost = pair.alpha + self.model.hidden_bytes / pair.bandwidth
            for here, there in (pair.between, pair.between[::-1]):
                self.near[here].append((cost, there))
        self.speed = {name: self._whole_seconds(name) for name in self.near}
        self.names = sorted(self.near, key=lambda name: (self.speed[name], name))

    def _whole_seconds(self, name: str) -> float:
        table = self.pricing.table(Cutting((name,)), self.pricing.alone)
        return float(table.by_layer.sum()) + table.first + table.last

    def single_hosts(self) -> list[Plan]:
        """One of each kind."""
        first: dict[Traits, str] = {}
        for name in self.names:
            first.setdefault(traits(self.cluster.by_name[name]), name)
        quickest = list(first.values())[:_SEEDS]
        roomiest = sorted(first.values(), key=lambda name: (-self.cluster.by_name[name].memory, name))[:_SEEDS]
        return [Plan((Stage((name,), 0, self.model.layers),)) for name in dict.fromkeys(quickest + roomiest)]

    def pools(self, size: int) -> list[Plan]:
        """Around each seed, with those near it."""
        seen: dict[tuple[object, ...], None] = {}
        found: list[Plan] = []
        for seed in self._seeds():
            pool = self._around(seed, size, set(self.near))
            shape = tuple(
                (traits(self.cluster.by_name[a]), *(pair_traits(self.cluster, a, b) for b in pool)) for a in pool
            )
            if shape in seen or len(seen) == _POOLS:
                continue
            seen[shape] = None
            part = self.cluster.among(sorted(pool))
            costs = StageCosts(self.question.on(part), everywhere=False)
            found += best_of_each(ExactSearch(costs))
        return found

    def wide(self) -> list[Priced]:
        """Near hosts as one stage, the best of each number of them."""
        best: dict[int, Priced] = {}
        for seed in self._seeds():
            around = self._around(seed, _WIDE[-1], set(self.near))
            for width in (width for width in _WIDE if width <= len(around)):
                for cutting in self.pricing.cuttings(sorted(around[:width])):
                    priced = self.pricing.price((cutting,))
                    if width not in best or priced.goal < best[width].goal:
                        best[width] = priced
        return list(best.values())

    def priced(self, plans: Sequence[Plan]) -> list[Priced]:
        groups = [tuple(Cutting.of(stage) for stage in one.stages) for one in plans]
        return [self.pricing.price(each) for each in groups]

    def improved(self, starts: Sequence[Priced]) -> list[Priced]:
        """From the best of each kind on."""
        improver = Improver(self.pricing, self.near, self.speed.__getitem__)
        first: dict[tuple[int, int], Priced] = {}
        for start in sorted(starts, key=lambda priced: priced.goal):
            first.setdefault((len(start.groups), sum(len(group.devices) for group in start.groups)), start)
        found, left = [], _CHANGES
        for place, start in enumerate(list(first.values())[:_STARTS]):
            share = left // (min(_STARTS, len(first)) - place)
            best, rest = improver.improved(start, share)
            left -= share - rest
            found.append(best)
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

    def regions(self) -> list[list[str]]:
        """Around each seed; none where that is no part of all."""
        found = [self._around(seed, _REGION, set(self.near)) for seed in self._seeds()]
        return [[name for name in self.names if name in hosts] for hosts in found if len(hosts) < len(self.names)]

    def pipelines(self, width: int, hosts: Sequence[str]) -> list[Priced]:
        """The best two of that width over some of these hosts, which are the quickest first."""
        groups = self._groups(width, hosts)
        found: dict[Groups, Priced] = {}
        for stages in self._lengths(groups):
            measure, _ = self.pricing.measure(stages)
            for chosen in (groups[:stages], self._chain(groups, stages, measure)):
                order = tuple(self._ring(chosen, measure))
                found[order] = self.pricing.price(order)
        return sorted(found.values(), key=lambda priced: priced.goal)[:2]

    def _groups(self, width: int, hosts: Sequence[str]) -> list[Cutting]:
        """Disjoint ones that have room for a layer, each of the quickest host that is left and those near it; the
        quickest first."""
        free = set(hosts)
        found: list[Cutting] = []
        for seed in hosts:
            if seed not in free:
                continue
            if len(found) == _MOST_STAGES:
                break
            free.discard(seed)
            names = [seed] if width == 1 else self._around(seed, width, free)
            if len(names) == width:
                free -= set(names)
                found += self.pricing.cuttings(sorted(names))[:1]
        pricing = self.pricing
        return sorted(found, key=lambda group: (pricing.seconds(group), -pricing.room(group), group.devices))

    def _lengths(self, groups: Sequence[Cutting]) -> list[int]:
        """Numbers of stages to try: the fewest that have room, if those with the most are taken, and more."""
        most = min(len(groups), _MOST_STAGES, self.model.layers)
        rooms = [self.pricing.room(group) for group in groups]
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
        per_layer = {group: self.pricing.seconds(group) / self.model.layers for group in groups}
        room = {group: self.pricing.room(group) for group in groups}
        while len(chain) < stages:
            last = chain[-1].devices

            def added(group: Cutting, last: tuple[str, ...] = last) -> float:
                return self.pricing.hop(last, group.devices, measure) / room[group] + per_layer[group]

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
            return self.pricing.hop(groups[a].devices, groups[b].devices, measure)

        def back(a: int, b: int) -> float:
            return self.pricing.hop(groups[a].devices, groups[b].devices, measure, last=True)

        return hop, back
