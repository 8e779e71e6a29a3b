"""Which groups of devices become stages, in which order and with which layers: exact, for a few hosts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ferrule.plan.search_cut import Aim, Floats

Counts = tuple[int, ...]
_Key = tuple[int, int, int, int]
"""First stage (-1: any), last stage (-1: any), free devices, stages still to come (0: any)."""
_WIDENINGS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""By how much above the lower bound a best sequence is looked for first: the nearer, the less there is to look at."""


@dataclass(frozen=True, eq=False)
class Option:
    """Some devices as one stage. ``counts``: how many of each class of interchangeable devices; ``runs``: as in
    `StageTable`."""

    counts: Counts
    runs: Floats


@dataclass(frozen=True, eq=False)
class Choice:
    """What there is to choose from: no more than ``available`` devices of each class. ``hops[a, b]``: seconds from
    option a to the next stage b; ``back[b, a]``: from the last stage b to the first one a."""

    available: Counts
    options: tuple[Option, ...]
    hops: Floats
    back: Floats


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
    """The best sequence of disjoint options, by dynamic programming over (first stage, last stage, devices used,
    layers placed), as Held and Karp (1962) do for tours, with what cannot beat a bound left out.

    What is left to pay is bounded from below by the same problem without an order (``rest``): every further stage is
    entered by its cheapest hop. ``aim``: ``sum`` adds the stages and the hops; ``max`` is the slowest stage, without
    hops. ``stages``: exactly so many. ``all_used``: no device is left over. Devices of one class are interchangeable,
    so only how many are used counts.
    """

    def __init__(self, choice: Choice, aim: Aim = "sum", *, stages: int | None = None, all_used: bool = False) -> None:
        self.choice = choice
        self._aim = aim
        self._stages, self._all_used = stages or 0, all_used
        self._whole_runs = np.stack([option.runs for option in choice.options])
        self._runs = self._whole_runs
        self._layers = self._runs.shape[1] - 1
        counts = np.array([option.counts for option in choice.options])
        radix = np.cumprod([1, *(count + 1 for count in choice.available[:-1])])
        self._codes = counts @ radix
        states = np.array(list(itertools.product(*(range(count + 1) for count in choice.available))))
        self._fitting = {
            int(free @ radix): np.flatnonzero((counts <= free).all(axis=1)) for free in states[_by_size(states)]
        }
        self._all = int(np.array(choice.available) @ radix)
        beside = (counts[:, None, :] + counts[None, :, :] <= np.array(choice.available)).all(axis=2)
        nothing = np.zeros_like(choice.hops)
        self._hops, self._back = (choice.hops, choice.back) if aim == "sum" else (nothing, nothing)
        self._any_first = _constant(self._back[beside])
        self._any_last = self._any_first and _constant(self._hops[beside])
        into = np.where(beside, self._hops, np.inf).min(axis=0)
        into[~np.isfinite(into)] = 0.0
        self._into: Floats = into
        self._rest: dict[tuple[int, int], Floats] = {}

    def _bound(self, to_come: int, free: int) -> Floats:
        """With so many stages to come (if they are counted) and devices free: the least that layers l and later can
        still cost, by l."""
        key = (to_come, free) if self._stages else (1, free)
        if key not in self._rest:
            least = np.full(self._layers + 1, np.inf)
            if to_come or not self._stages:
                for index in self._fitting[free]:
                    after = self._bound(to_come - 1, free - int(self._codes[index]))
                    runs = self._whole_runs[index]
                    total = np.maximum(runs, after) if self._aim == "max" else runs + (after + self._into[index])
                    np.minimum(least, total.min(axis=1), out=least)
            if not self._stages or not to_come:
                least[-1] = 0.0
            self._rest[key] = least
        return self._rest[key]

    @property
    def lower_bound(self) -> float:
        """No sequence costs less, the cheapest hop into each further stage included."""
        return float(self._bound(self._stages, self._all)[0]) - float(self._into.max())

    def best(self, *, bound: float = math.inf, cap: float = math.inf) -> Found | None:
        """The best sequence of at least two stages that costs less than ``bound``, of which no stage takes more than
        ``cap``."""
        self._runs = np.where(self._whole_runs <= cap, self._whole_runs, np.inf)
        for above in _WIDENINGS:
            nearer = self.lower_bound * (1 + above)
            if nearer >= bound:
                break
            if found := self._below(nearer):
                return found
        return self._below(bound)

    def _below(self, bound: float) -> Found | None:
        waiting: dict[_Key, _State] = {}
        for index in range(len(self._runs)):
            start = self._runs[index][0].copy()
            start[-1] = np.inf
            to_come, free = max(0, self._stages - 1), self._all - int(self._codes[index])
            if self._prune(start, to_come, free, bound):
                ends = (-1 if self._any_first else index, -1 if self._any_last else index)
                _merge(waiting, (*ends, free, to_come), _State(start, [(None, index, 0.0)]))
        found: tuple[float, _State] | None = None
        by_free = {code: place for place, code in enumerate(self._fitting)}
        while waiting:  # in order of the devices that are free: nothing comes back to more of them
            level = max(by_free[key[2]] for key in waiting)
            for key in sorted(key for key in waiting if by_free[key[2]] == level):
                state = waiting.pop(key)
                limit = bound if found is None else found[0]
                if not (self._stages and key[3] == 0) and self._prune(state.best, key[3], key[2], limit):
                    found = self._expand(waiting, key, state, found, bound)
        return None if found is None else self._trace(*found)

    def _prune(self, best: Floats, to_come: int, free: int, bound: float) -> bool:
        """Leave out what cannot end below ``bound``; False if nothing is left."""
        rest = self._bound(to_come, free)
        ahead = np.maximum(best, rest) if self._aim == "max" else best + rest
        hopeless = ~(ahead < bound)
        best[hopeless] = np.inf
        return not hopeless.all()

    def _expand(
        self,
        waiting: dict[_Key, _State],
        key: _Key,
        state: _State,
        found: tuple[float, _State] | None,
        bound: float,
    ) -> tuple[float, _State] | None:
        first, last, free, to_come = key
        options = self._fitting[free]
        if not len(options):
            return found
        active = np.flatnonzero(np.isfinite(state.best))
        runs, before = self._runs[options[:, None], active[None, :]], state.best[active][None, :, None]
        together = np.maximum(before, runs) if self._aim == "max" else before + runs
        hops = self._hops[max(last, 0), options]
        costs = together.min(axis=1) + hops[:, None]
        to_come = max(0, to_come - 1)
        for place, index in enumerate(map(int, options)):
            best, left = costs[place], free - int(self._codes[index])
            source: tuple[_State | None, int, float] = (state, index, float(hops[place]))
            total = float(best[-1] + self._back[index, max(first, 0)])
            limit = bound if found is None else found[0]
            if total < limit and to_come == 0 and not (left and self._all_used):
                found = (total, _State(best.copy(), [source]))
            best[-1] = np.inf
            if self._prune(best, to_come, left, limit):
                target = (first, -1 if self._any_last else index, left, to_come)
                _merge(waiting, target, _State(best, [source]))
        return found

    def _trace(self, seconds: float, state: _State) -> Found:
        """Backwards through the states by which the cost came about."""
        at, options, ends = self._layers, [], []
        step: _State | None = state
        while step is not None:
            ends.append(at)
            ways: list[tuple[float, int, int, _State | None]] = []
            for source, index, hop in step.sources:
                if source is None:
                    ways.append((float(self._runs[index][0, at]), 0, index, None))
                    continue
                runs = self._runs[index][:, at]
                costs = np.maximum(source.best, runs) if self._aim == "max" else source.best + runs
                ways.append((float(costs.min()) + hop, int(costs.argmin()), index, source))
            _, at, index, step = min(ways, key=lambda way: way[:3])
            options.append(index)
        return Found(seconds, tuple(reversed(options)), tuple(reversed(ends)))


def _by_size(states: NDArray[np.int64]) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(states.sum(axis=1), kind="stable")
    return order


def _merge(waiting: dict[_Key, _State], key: _Key, state: _State) -> None:
    have = waiting.get(key)
    if have is None:
        waiting[key] = state
    else:
        np.minimum(have.best, state.best, out=have.best)
        have.sources += state.sources


def _constant(values: Floats | NDArray[np.float64]) -> bool:
    return values.size == 0 or bool((values == values.flat[0]).all())
