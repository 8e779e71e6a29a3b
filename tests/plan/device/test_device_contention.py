"""Speed that a core keeps while others compute: its calculation from times, and the processes that measure."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.plan.device.contention import CoresTogether
from ferrule.plan.device.contention_worker import slowest_of

times = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8).map(sorted)


@given(times, st.integers(1, 3))
def test_the_slowest_of_some_is_expected_as_over_all_that_can_be_drawn(found: list[float], count: int) -> None:
    every = [max(drawn) for drawn in itertools.product(found, repeat=count)]
    assert slowest_of(count, found) == pytest.approx(statistics.mean(every))


@pytest.mark.slow
def test_cores_are_measured_by_processes_that_wait_in_between() -> None:
    with CoresTogether(2, 2) as together:
        for _ in range(2):
            kept = together.measure()
            assert 0.05 < kept.together <= 1
            assert 0.05 < kept.awake <= 1
            assert kept.in_turns is None
    with CoresTogether(3, 2) as crowd:
        assert all(0.05 < (part or 0) <= 1 for part in crowd.measure())
    with CoresTogether(1, 1) as alone:
        assert alone.measure() == (1.0, None, 1.0)
