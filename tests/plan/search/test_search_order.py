"""Choice and order of the devices of stages: the search finds what trying everything finds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.plan.cut import DeviceMemory, StageTable
from ferrule.plan.search.exact.order import Choice, Option, OrderSearch

LAYERS = 5
CLASSES = ((1, 1, 1, 1), (2, 1, 1), (2, 2), (4,))


def tables(draw: st.DrawFn, available: tuple[int, ...]) -> list[tuple[tuple[int, ...], StageTable]]:
    """Up to six groups of devices, single ones of every class among them."""
    every = [c for c in itertools.product(*(range(count + 1) for count in available)) if sum(c)]
    singles = [counts for counts in every if sum(counts) == 1]
    wider = draw(st.lists(st.sampled_from(every), max_size=2))
    numbers = st.integers(1, 9).map(float)
    found = []
    for counts in singles + wider:
        layers = np.array([draw(numbers) for _ in range(LAYERS)])
        memory = DeviceMemory(draw(st.integers(4, 40)), np.ones(LAYERS) * draw(numbers), 0.0, draw(numbers), 1.0)
        found.append((counts, StageTable(layers, (memory,), 0.0, draw(numbers), draw(numbers))))
    return found


@st.composite
def choices(draw: st.DrawFn) -> tuple[Choice, list[StageTable]]:
    available = draw(st.sampled_from(CLASSES))
    stages = tables(draw, available)
    hop = st.integers(0, 6).map(float)
    even = draw(st.booleans())
    hops = np.array([[2.0 if even else draw(hop) for _ in stages] for _ in stages])
    back = np.array([[1.0 if even else draw(hop) for _ in stages] for _ in stages])
    options = tuple(Option(counts, table) for counts, table in stages)
    return Choice(available, options, hops, back), [table for _, table in stages]


def by_trying(choice: Choice, stages: list[StageTable], count: int | None, all_used: bool, cap: float) -> float:
    best = math.inf
    for size in range(2, sum(choice.available) + 1):
        if count not in (None, size):
            continue
        for order in itertools.product(range(len(stages)), repeat=size):
            used = np.array([choice.options[index].counts for index in order]).sum(axis=0)
            if (used > np.array(choice.available)).any():
                continue
            if all_used and (used != np.array(choice.available)).any():
                continue
            hops = sum(choice.hops[a, b] for a, b in itertools.pairwise(order)) + choice.back[order[-1], order[0]]
            for ends in itertools.combinations(range(1, LAYERS), size - 1):
                spans = zip(order, (0, *ends), (*ends, LAYERS), strict=True)
                times = [choice.options[index].table.runs[a, b] for index, a, b in spans]
                if max(times) <= cap:
                    best = min(best, sum(times) + hops)
    return float(best)


@given(choices(), st.sampled_from([None, 2, 3]), st.booleans(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_the_best_order_is_found(
    drawn: tuple[Choice, list[StageTable]], count: int | None, all_used: bool, capped: bool
) -> None:
    choice, stages = drawn
    cap = 20.0 if capped else math.inf
    best = by_trying(choice, stages, count, all_used, cap)
    search = OrderSearch(choice, stages=count, all_used=all_used)
    found = search.best(cap=cap)
    if found is None:
        assert best == math.inf
        return
    assert found.seconds == pytest.approx(best)
    assert search.lower_bound(cap) <= found.seconds
    assert search.best(bound=best, cap=cap) is None, "nothing is below the best"


def test_hops_choose_the_order_of_a_ring() -> None:
    """Four equal hosts on a ring of cables; other ways are longer."""
    stage = StageTable(np.ones(4), (DeviceMemory(1.0, np.ones(4)),))
    counts = [tuple(int(a == b) for b in range(4)) for a in range(4)]
    ring = [0, 2, 1, 3]
    hops = np.full((4, 4), 9.0)
    for a, b in itertools.pairwise([*ring, ring[0]]):
        hops[a, b] = hops[b, a] = 1.0
    search = OrderSearch(Choice((1,) * 4, tuple(Option(each, stage) for each in counts), hops, hops))
    found = search.best()
    assert found is not None
    assert found.seconds == 4 + 4 * 1.0
    at = found.options.index(0)
    around = found.options[at:] + found.options[:at]
    assert around in ((0, 2, 1, 3), (0, 3, 1, 2))
