"""Exact search for the groups of devices that become stages, their order and their layers, for a few hosts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ferrule.plan.cut import Floats, StageTable
from ferrule.plan.search.exact.free_sets import Counts, FreeSets, Places
from ferrule.plan.search.exact.spans import Spans

_Key = tuple[int, int, int, int]
"""Kinds of the first stage (-1: any) and the last one (-1: any), free devices, stages still to come (0: any)."""
_WIDENINGS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""By how much above the lower bound a best sequence is looked for first: the nearer, the less there is to look at."""
_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Option:
    """Some devices as one stage. ``counts``: how many of each class of interchangeable devices."""

    counts: Counts
    table: StageTable


@dataclass(frozen=True, eq=False)
class Choice:
    """Options to choose from: no more than ``available`` devices of each class. ``hops[a, b]``: seconds from option a
    to the next stage b; ``back[b, a]``: from the last stage b to the first one a. ``kinds``: of each option the row and
    column that are its own, as it takes the same devices as others; None: each has one."""

    available: Counts
    options: tuple[Option, ...]
    hops: Floats
    back: Floats
    kinds: Places | None = None

    @cached_property
    def kind_of(self) -> Places:
        return np.arange(len(self.options)) if self.kinds is None else self.kinds

    @cached_property
    def sets(self) -> FreeSets:
        return FreeSets(self.available, [option.counts for option in self.options])

    @cached_property
    def spans(self) -> Spans:
        return Spans.of([option.table for option in self.options])

    @cached_property
    def batches(self) -> list[_Batch]:
        """All sets that stages can leave and that have options: so many at once as fit into a processor's cache, those
        of fewer devices first."""
        sets = self.sets
        reached = np.zeros(sets.all + 1, dtype=bool)
        reached[sets.all] = True
        for some in range(sets.all, -1, -1):
            if reached[some]:
                reached[sets.left[some]] = True
        found = []
        for size in range(1, int(sets.sizes[-1]) + 1):
            level = [int(each) for each in np.flatnonzero(reached & (sets.sizes == size)) if len(sets.fitting[each])]
            counts = np.cumsum([len(sets.fitting[each]) for each in level]) // _AT_ONCE
            for _, group in itertools.groupby(zip(counts.tolist(), level, strict=True), key=lambda one: one[0]):
                those = [each for _, each in group]
                fitting = [sets.fitting[each] for each in those]
                found.append(
                    _Batch(
                        np.array(those, dtype=np.intp),
                        np.concatenate(fitting),
                        np.concatenate([sets.left[each] for each in those]),
                        np.cumsum([0, *map(len, fitting[:-1])]),
                    )
                )
        return found

    @cached_property
    def entries(self) -> _Entries:
        """Of pairs of options that leave each other their devices."""
        counts = np.zeros((len(self.hops), len(self.available)), dtype=np.intp)
        counts[self.kind_of] = [option.counts for option in self.options]
        beside = (counts[:, None, :] + counts[None, :, :] <= np.array(self.available)).all(axis=2)
        back, hops = (np.where(beside, each, np.inf) for each in (self.back, self.hops))
        least_back = float(back.min())
        any_first = bool((~beside | (back == least_back)).all())
        into = hops.min(axis=0)
        any_last = any_first and bool((~beside | (hops == into.min())).all())
        into[~np.isfinite(into)] = 0.0
        return _Entries(any_first, any_last, into[self.kind_of], least_back if beside.any() else 0.0)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Some sets of free devices; one after the other the ``options`` that each allows, and the sets that those leave;
    ``starts``: where each set's begin."""

    sets: Places
    options: Places
    left: Places
    starts: Places


@dataclass(frozen=True, eq=False)
class _Entries:
    """``any_first``: the way back costs the same whichever stage is the first, and the last; ``any_last``: and a hop
    whichever stage it comes from and goes to. ``into``: the cheapest hop to each option, ``least_back``: the cheapest
    way back."""

    any_first: bool
    any_last: bool
    into: Floats
    least_back: float


@dataclass(frozen=True)
class Found:
    """``options``: places in `Choice.options`, in the order of the stages; ``ends``: behind which layer each ends."""

    seconds: float
    options: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(eq=False)
class _State:
    """``best[l]``: the least for having placed l layers; ``sources``: states before the last stage (None: it is the
    first), that stage, and the cost of the hop to it."""

    best: Floats
    sources: list[tuple[_State | None, int, float]] = field(default_factory=list)


class OrderSearch:
    """The best sequence of disjoint options whose stages and hops add up to the least, by dynamic programming over
    (first stage, last stage, devices used, layers placed), as Held and Karp (1962) do for tours, with what cannot beat
    a bound left out.

    What is left to pay is bounded from below by the same problem without an order (``rest``): every further stage is
    entered by its cheapest hop. ``stages``: exactly so many; None: two or more. ``all_used``: no device is left over.
    Devices of one class are interchangeable, so only how many are used counts.
    """

    def __init__(self, choice: Choice, *, stages: int | None = None, all_used: bool = False) -> None:
        self.choice = choice
        self.stages, self._all_used = stages or 0, all_used
        self._whole = choice.spans
        self._spans, self._cap = self._whole, math.inf
        self._layers = self._whole.layers
        self._kind_of = choice.kind_of
        sets, entries = choice.sets, choice.entries
        self._all, self._fitting, self._left = sets.all, sets.fitting, sets.left
        self._any_first, self._any_last = entries.any_first, entries.any_last
        self._into, self._least_back = entries.into, entries.least_back
        self._rest: dict[int, Floats] = {}

    def _capped(self, cap: float) -> None:
        """No stage may take more than ``cap``."""
        if cap != self._cap:
            self._cap, self._rest = cap, {}
            self._spans = self._whole if cap == math.inf else self._whole.below(cap)

    def rest(self, to_come: int) -> Floats:
        """With so many stages to come (0: one or more): the least that layers l and later can still cost, by set of
        free devices and l."""
        if to_come not in self._rest:
            least = np.full((self._all + 1, self._layers + 1), np.inf)
            after = self.rest(to_come - 1) if to_come > 1 else least if to_come == 0 else None
            self._rest[to_come] = least
            for batch in self.choice.batches:  # each needs those with fewer devices
                least[batch.sets] = self._least(batch, after, ends=to_come <= 1)
        return self._rest[to_come]

    def _least(self, batch: _Batch, after: Floats | None, *, ends: bool) -> Floats:
        """Of any stage that begins at each layer, and of what follows it."""
        options, left = batch.options, batch.left
        if after is None:
            costs = np.full((len(options), self._layers + 1), np.inf)
        else:
            costs = self._spans.least_ahead(options, after[left])
        if ends:
            to_end = self._spans.to_end[options]
            if self._all_used:
                to_end[left > 0] = np.inf
            np.minimum(costs, to_end, out=costs)
        costs += self._into[options, None]
        return np.minimum.reduceat(costs, batch.starts, axis=0)

    def lower_bound(self, cap: float = math.inf, *, counted: bool = True) -> float:
        """No sequence of which no stage takes more than ``cap`` costs less; ``counted``: of so many stages as asked
        for."""
        self._capped(cap)
        options, left = self._fitting[self._all], self._left[self._all]
        ahead = self._spans.from_start[options] + self.rest(max(0, self.stages - 1) if counted else 0)[left]
        return float(ahead.min()) + self._least_back if ahead.size else math.inf

    def best(self, *, bound: float = math.inf, cap: float = math.inf) -> Found | None:
        """The best sequence of at least two stages that costs less than ``bound``, of which no stage takes more than
        ``cap``."""
        lowest = self.lower_bound(cap)
        if not lowest < bound:
            return None
        for above in _WIDENINGS:
            nearer = lowest * (1 + above)
            if nearer >= bound:
                break
            if found := self._below(nearer):
                return found
        return self._below(bound)

    def _below(self, bound: float) -> Found | None:
        waiting: dict[_Key, _State] = {}
        options, left = self._fitting[self._all], self._left[self._all]
        to_come = max(0, self.stages - 1)
        start = self._pruned(self._spans.from_start[options], to_come, left, bound)
        for place in np.flatnonzero(np.isfinite(start).any(axis=1)):
            index = int(options[place])
            kind = int(self._kind_of[index])
            ends = (-1 if self._any_first else kind, -1 if self._any_last else kind)
            _merge(waiting, (*ends, int(left[place]), to_come), _State(start[place], [(None, index, 0.0)]))
        found: tuple[float, _State] | None = None
        while waiting:  # in order of the devices that are free: nothing comes back to more of them
            level = max(key[2] for key in waiting)
            for key in sorted(key for key in waiting if key[2] == level):
                state = waiting.pop(key)
                if len(self._fitting[level]):
                    found = self._expand(waiting, key, state, found, bound)
        return None if found is None else self._trace(*found)

    def _pruned(self, costs: Floats, to_come: int, left: Places, bound: float) -> Floats:
        """Without what cannot end below ``bound``."""
        return np.where(costs + (self.rest(to_come)[left] + self._least_back) < bound, costs, np.inf)

    def _expand(
        self,
        waiting: dict[_Key, _State],
        key: _Key,
        state: _State,
        found: tuple[float, _State] | None,
        bound: float,
    ) -> tuple[float, _State] | None:
        first, last, free, to_come = key
        options, left = self._fitting[free], self._left[free]
        kinds = self._kind_of[options]
        hops = self.choice.hops[max(last, 0), kinds]
        limit = bound if found is None else found[0]
        if to_come <= 1:
            totals = (state.best + self._spans.to_end[options]).min(axis=1)
            totals += hops + self.choice.back[kinds, max(first, 0)]
            if self._all_used:
                totals[left > 0] = np.inf
            best = int(totals.argmin())
            if totals[best] < limit:
                limit = float(totals[best])
                found = (limit, _State(state.best, [(state, int(options[best]), float(hops[best]))]))
            if to_come == 1:
                return found
        costs = self._spans.least_behind(options, state.best) + hops[:, None]
        to_come = max(0, to_come - 1)
        costs = self._pruned(costs, to_come, left, limit)
        for place in np.flatnonzero(np.isfinite(costs).any(axis=1)):
            index = int(options[place])
            target = (first, -1 if self._any_last else int(kinds[place]), int(left[place]), to_come)
            _merge(waiting, target, _State(costs[place], [(state, index, float(hops[place]))]))
        return found

    def _trace(self, seconds: float, last: _State) -> Found:
        """Backwards through the states by which the cost came about."""
        options: list[int] = []
        ends: list[int] = []
        at, step = self._layers, last
        while True:
            ends.append(at)
            choices: list[tuple[float, int, int, _State | None]] = []
            for source, index, hop in step.sources:
                runs = self._spans.runs_to(index, at)
                if source is None:
                    choices.append((float(runs[0]), 0, index, None))
                else:
                    costs = source.best + runs
                    choices.append((float(costs.min()) + hop, int(costs.argmin()), index, source))
            _, at, index, before = min(choices, key=lambda choice: choice[:3])
            options.append(index)
            if before is None:
                return Found(seconds, tuple(reversed(options)), tuple(reversed(ends)))
            step = before


def _merge(waiting: dict[_Key, _State], key: _Key, state: _State) -> None:
    have = waiting.get(key)
    if have is None:
        waiting[key] = state
    else:
        np.minimum(have.best, state.best, out=have.best)
        have.sources += state.sources
