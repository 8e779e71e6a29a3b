"""The benchmark of several cables, on few and slow ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ferrule.bench import RailsBench, bench_rails
from ferrule.bench.rails import Moment
from ferrule.errors import FabricError
from ferrule.lab import Cable

SIZE = 2 << 20


def test_rates_are_those_of_whole_operations_in_a_time() -> None:
    bench = RailsBench((1e6, 3e6), 1_000_000, (Moment(0.0, 9.0), Moment(2.0, 2.0), Moment(4.0, 2.0), Moment(8.0, 4.0)))
    assert bench.rate(0.0, 4.5) == 4e6
    assert bench.rate(3.0, 4.5) == 0.0
    assert bench.rate(4.0) == 2e6
    assert bench.share == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_one_cable_is_used_fully() -> None:
    bench = bench_rails([200e6], size=SIZE, seconds=2)
    assert 50e6 < bench.raw[0] < 250e6
    assert bench.share > 0.6  # a busy machine; a quiet one gives 0.95


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_what_happens_to_a_cable_shows() -> None:
    def slow(cables: Sequence[Cable]) -> None:
        cables[0].limit(20e6)

    def fast(cables: Sequence[Cable]) -> None:
        cables[0].limit(200e6)

    bench = bench_rails([200e6], size=SIZE, seconds=8, faults=[(2, slow), (5, fast)])
    assert 0 < bench.rate(2.2, 5.0) < bench.rate(end=2.0) / 5
    assert bench.rate(7.0) > 5 * bench.rate(2.2, 5.0)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_ranks_that_fail_are_an_error() -> None:
    def end(cables: Sequence[Cable]) -> None:
        raise FabricError("enough")

    with pytest.raises(FabricError, match="enough"):
        bench_rails([200e6], size=SIZE, seconds=5, faults=[(0.1, end)])
