"""Measurements by others against predictions from what is published of their machines."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from ferrule.bench.published import PublishedBench, bench_published
from ferrule.hardware import shipped


@cache
def bench() -> PublishedBench:
    return bench_published()


def test_published_measurements_are_predicted() -> None:
    assert bench().mean_error <= 0.15
    assert bench().disagreements == ()
    assert max(abs(row.error) for row in bench().rows) <= 0.25
    # One number per kind of machine, and more measurements than numbers.
    assert set(bench().launch_seconds) == {row.series.machine for row in bench().rows}
    assert all(count >= 2 for count in Counter(row.series.machine for row in bench().rows).values())
    assert all(row.series.url.startswith("https://") for row in bench().rows)


def test_profiles_have_what_was_fitted() -> None:
    machines = shipped().machines
    for machine, seconds in bench().launch_seconds.items():
        launch = machines[machine].launch
        assert launch is not None
        assert launch.value == pytest.approx(seconds, rel=0.02), machine
