"""What others measured is predicted from what is published of their machines."""

from __future__ import annotations

from collections import Counter

from ferrule.bench.published import bench_published


def test_published_measurements_are_predicted() -> None:
    bench = bench_published()
    assert bench.mean_error <= 0.15
    assert bench.disagreements == ()
    assert max(abs(row.error) for row in bench.rows) <= 0.25
    # One number per kind of machine, and more measurements than numbers.
    assert set(bench.launch_seconds) == {row.series.machine for row in bench.rows}
    assert all(count >= 2 for count in Counter(row.series.machine for row in bench.rows).values())
    assert all(row.series.url.startswith("https://") for row in bench.rows)
