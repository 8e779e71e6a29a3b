"""Sequences of stages made better by small changes: a local search."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ferrule.plan.search.heuristic.pricing import Groups, Priced, Pricing

_QUICKEST, _ROOMIEST, _NEAREST = 4, 2, 2
"""Of the hosts that are free, so many are tried in each place."""
_BETTER = 1e-6
"""Least improvement, as a part, that counts as one."""

Names = tuple[str, ...]
Order = tuple[Names, ...]
"""The devices of each stage."""


class Improver:
    """``near``: by host, the others that it shares cables with and what a message costs; ``speed``: seconds of the
    whole model on a host."""

    def __init__(
        self, pricing: Pricing, near: dict[str, list[tuple[float, str]]], speed: Callable[[str], float]
    ) -> None:
        self._pricing, self._near, self._speed = pricing, near, speed
        self._stages = pricing.model.layers

    def improved(self, start: Priced, budget: int) -> tuple[Priced, int]:
        """Local optimum, where no change helps any more, or the state after so many have been tried; and what is left
        of these."""
        best, stale = start, False
        while not stale and budget > 0:
            stale = True
            for changed in self._changes(best.groups):
                budget -= 1
                if changed.goal < best.goal * (1 - _BETTER):
                    best, stale = changed, False
                    break
                if budget <= 0:
                    break
        return best, budget

    def _changes(self, groups: Groups) -> Iterator[Priced]:
        known = {tuple(sorted(group.devices)): group for group in groups}
        order = tuple(known)
        seen = {order}
        yield from self._recut(groups)
        for other in self._orders(order):
            other = tuple(tuple(sorted(names)) for names in other if names)
            if not other or other in seen or len(other) > self._stages:
                continue
            seen.add(other)
            choices = [[known[names]] if names in known else self._pricing.cuttings(names) for names in other]
            for chosen in itertools.product(*choices):
                yield self._pricing.price(chosen)

    def _recut(self, groups: Groups) -> Iterator[Priced]:
        """Another way to cut one stage's layers."""
        for place, group in enumerate(groups):
            for cutting in self._pricing.cuttings(group.devices):
                if cutting != group:
                    yield self._pricing.price((*groups[:place], cutting, *groups[place + 1 :]))

    def _orders(self, order: Order) -> Iterator[Order]:
        """The likeliest changes first."""
        used = {name for names in order for name in names}
        for place, names in enumerate(order):
            before, behind = order[:place], order[place + 1 :]
            free = self._free(names, used)
            for new in free:
                yield (*before, (*names, new), *behind)  # add
                yield (*before, names, (new,), *behind)
                yield (*before, (new,), names, *behind)
            for name in names:
                others = tuple(each for each in names if each != name)
                yield (*before, others, *behind)  # drop
                yield from ((*before, (*others, new), *behind) for new in free)  # exchange
                if others:
                    yield (*before, others, (name,), *behind)  # split
                    yield (*before, (name,), others, *behind)
            if len(names) > 3:
                half = len(names) // 2
                yield (*before, names[:half], names[half:], *behind)
        yield from self._between(order)

    def _between(self, order: Order) -> Iterator[Order]:
        """Hosts that change their stage, stages that become one or change their places."""
        for a, b in itertools.combinations(range(len(order)), 2):
            yield self._with(order, {a: order[a] + order[b], b: ()})
            yield self._with(order, {a: order[b], b: order[a]})
            turned = order[:a] + order[a : b + 1][::-1] + order[b + 1 :]
            yield turned
            yield order[:a] + order[a + 1 : b + 1] + order[a : a + 1] + order[b + 1 :]
            for one, other in ((a, b), (b, a)):
                if len(order[one]) > 1:
                    for name in order[one]:
                        left = tuple(each for each in order[one] if each != name)
                        yield self._with(order, {one: left, other: (*order[other], name)})
            if len(order[a]) > 1 or len(order[b]) > 1:
                for name, fellow in itertools.product(order[a], order[b]):
                    here = tuple(each for each in order[a] if each != name)
                    there = tuple(each for each in order[b] if each != fellow)
                    yield self._with(order, {a: (*here, fellow), b: (*there, name)})

    @staticmethod
    def _with(order: Order, changed: dict[int, Names]) -> Order:
        return tuple(changed.get(place, names) for place, names in enumerate(order))

    def _free(self, names: Names, used: set[str]) -> Sequence[str]:
        """Hosts with a cable to one of ``names``: the quickest, the roomiest, the nearest."""
        costs: dict[str, float] = {}
        for name in names:
            for cost, other in self._near[name]:
                if other not in used:
                    costs[other] = min(cost, costs.get(other, cost))
        devices = self._pricing.cluster.by_name
        quickest = sorted(costs, key=lambda name: (self._speed(name), name))[:_QUICKEST]
        roomiest = sorted(costs, key=lambda name: (-devices[name].memory, name))[:_ROOMIEST]
        nearest = sorted(costs, key=lambda name: (costs[name], name))[:_NEAREST]
        return list(dict.fromkeys((*quickest, *roomiest, *nearest)))
