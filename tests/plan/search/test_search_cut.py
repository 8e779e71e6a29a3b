"""The cut of layers into stages: dynamic programming, HiGHS and trying everything agree."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from milp import cut_layers_milp

from ferrule.errors import PlanError
from ferrule.plan.cut import Aim, Cut, DeviceMemory, StageTable, cut_layers, split_layers

LAYERS = 6
costs = st.integers(1, 20)


@st.composite
def stage_tables(draw: st.DrawFn) -> StageTable:
    layers = st.lists(costs, min_size=LAYERS, max_size=LAYERS).map(lambda values: np.array(values, dtype=float))
    memory = tuple(
        DeviceMemory(draw(st.integers(5, 120)), draw(layers), draw(costs), draw(costs), draw(costs), tied=1.0)
        for _ in range(draw(st.integers(1, 2)))
    )
    return StageTable(draw(layers), memory, draw(costs), draw(costs), draw(costs))


def seconds_of(stages: list[StageTable], ends: tuple[int, ...], aim: Aim) -> float:
    """By the definition: what each stage's layers, ends and memory add up to."""
    times = []
    for place, (stage, first, last) in enumerate(zip(stages, (0, *ends[:-1]), ends, strict=True)):
        at_start, at_end = place == 0, place == len(stages) - 1
        for use in stage.memory:
            held = use.always + use.by_layer[first:last].sum() + at_start * use.first + at_end * use.last
            if held - (use.tied if at_start and at_end else 0) > use.room:
                return math.inf
        times.append(stage.always + stage.by_layer[first:last].sum() + at_start * stage.first + at_end * stage.last)
    return float(max(times) if aim == "max" else sum(times))


def by_trying(stages: list[StageTable], aim: Aim) -> float:
    cuts = itertools.combinations(range(1, LAYERS), len(stages) - 1)
    return min((seconds_of(stages, (*cut, LAYERS), aim) for cut in cuts), default=math.inf)


def check(stages: list[StageTable], aim: Aim, cut: Cut | None) -> None:
    best = by_trying(stages, aim)
    if cut is None:
        assert best == math.inf
    else:
        assert cut.seconds == best == seconds_of(stages, cut.ends, aim)


@given(st.lists(stage_tables(), min_size=1, max_size=4), st.sampled_from(["sum", "max"]))
@settings(max_examples=80, deadline=None)
def test_dynamic_programming_finds_the_best_cut(stages: list[StageTable], aim: Aim) -> None:
    check(stages, aim, cut_layers(stages, aim))


@given(st.lists(stage_tables(), min_size=1, max_size=4), st.sampled_from(["sum", "max"]))
@settings(max_examples=25, deadline=None)
def test_highs_finds_the_best_cut(stages: list[StageTable], aim: Aim) -> None:
    check(stages, aim, cut_layers_milp(stages, aim))


def test_more_stages_than_layers() -> None:
    stage = StageTable(np.ones(2), ())
    assert cut_layers([stage] * 3, "sum") is None
    assert cut_layers_milp([stage] * 3, "max") is None


def test_of_equal_cuts_the_earlier_stages_get_more() -> None:
    cut = cut_layers([StageTable(np.ones(5), ())] * 2, "max")
    assert cut is not None
    assert cut.ends == (3, 5)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 9), st.integers(0, 60), st.integers(0, 60))
def test_layers_are_cut_as_well_as_trying_all_cuts_would(sizes: list[int], stages: int, first: int, last: int) -> None:
    if stages > len(sizes):
        with pytest.raises(PlanError, match="cannot fill"):
            split_layers(sizes, stages, first, last)
        return

    def largest(ranges: list[tuple[int, int]]) -> int:
        extra = [0] * len(ranges)
        extra[0] += first
        extra[-1] += last
        return max(sum(sizes[a:b]) + more for (a, b), more in zip(ranges, extra, strict=True))

    def all_cuts(start: int, left: int) -> list[list[tuple[int, int]]]:
        if left == 1:
            return [[(start, len(sizes))]]
        stops = range(start + 1, len(sizes) - left + 2)
        return [[(start, stop), *rest] for stop in stops for rest in all_cuts(stop, left - 1)]

    found = split_layers(sizes, stages, first, last)
    assert [index for a, b in found for index in range(a, b)] == list(range(len(sizes)))
    assert largest(found) == min(largest(cut) for cut in all_cuts(0, stages))
