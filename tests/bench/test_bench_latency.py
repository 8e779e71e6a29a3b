"""`ferrule lab demo latency`: the arithmetic, and the whole from the outside on its tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.bench.latency import LatencyBench, LatencyRow, bench_latency, messages_per_token, predict
from ferrule.errors import ConfigError, ModelError


def finish_of_exchanges(exchanges: int, delay: float) -> float:
    """When the driver is through with a token, step by step: two ranks, no compute."""
    driver, follower = 0.0, delay  # the announcement
    for _ in range(exchanges):
        driver, follower = max(driver, follower + delay), max(follower, driver + delay)
    return driver


@pytest.mark.parametrize("layers", [1, 2, 6, 24])
def test_messages_in_a_row_are_those_of_the_ranks_waiting_for_each_other(layers: int) -> None:
    assert finish_of_exchanges(2 * layers + 1, 1.0) == messages_per_token("tensor", layers)
    assert messages_per_token("pipeline", layers) == 2


def bench_of(tensor_ms: float, pipeline_ms: float) -> LatencyBench:
    rows = [
        LatencyRow("tensor", 0.0, 50, tensor_ms, tensor_ms, tensor_ms, 1e3 / tensor_ms),
        LatencyRow("pipeline", 0.0, 2, pipeline_ms, pipeline_ms, pipeline_ms, 1e3 / pipeline_ms),
    ]
    return LatencyBench("model", 24, pipeline_ms, tuple(rows))


def test_at_the_crossover_both_splits_take_as_long() -> None:
    bench = bench_of(60.0, 108.0)
    assert bench.crossover == pytest.approx(1e-3)
    assert predict(60.0, 50, 1e-3) == predict(108.0, 2, 1e-3)
    assert bench_of(8.0, 5.0).crossover is None


def test_wrong_wishes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than 0"):
        bench_latency(delays=[0.0])
    with pytest.raises(ModelError, match=r"no config\.json"):
        bench_latency(model=str(tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_the_demo_measures_and_draws_every_point(tmp_path: Path) -> None:
    figures, picture = tmp_path / "latency.json", tmp_path / "latency.png"
    command = [sys.executable, "-m", "ferrule.cli.main", "lab", "demo", "latency", "--quick", "--delays", "20ms"]
    command += ["--tokens", "4", "--json", str(figures), "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "messages per token against 2" in done.stdout
    bench = json.loads(figures.read_text())
    points = {(row["split"], row["delay"]): row for row in bench["rows"]}
    assert set(points) == {(split, delay) for split in ("tensor", "pipeline") for delay in (0.0, 20e-3)}
    # No token can be quicker than the cable: 4 layers are 10 messages, 200 ms.
    assert points["tensor", 20e-3]["median_ms"] > 180
    assert points["pipeline", 20e-3]["median_ms"] > 36
    assert picture.read_bytes().startswith(b"\x89PNG")
