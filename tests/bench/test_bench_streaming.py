"""The benchmark of weights that are read from disk counts what is read, and says what the disk allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.bench.streaming import StreamingBench
from ferrule.cli.main import app


def test_the_disk_allows_its_speed_by_what_has_no_room() -> None:
    found = StreamingBench("m", 2, 300, 100, 120.0, 1000.0, "past the page cache", 8.0, 0.5)
    assert (found.needed, found.bound, found.part) == (100, 10.0, 0.8)
    chosen = StreamingBench("m", 2, 300, 0, 120.0, 1200.0, "past the page cache", 8.0, 0.5)
    assert (chosen.needed, chosen.bound, chosen.part) == (120, 10.0, 0.8)


@pytest.mark.slow
def test_what_is_read_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    given = ["bench", "streaming", "demo", "--rounds", "1", "--tokens", "8", "--times", "1.3"]
    told = CliRunner().invoke(app, [*given, "--folder", str(tmp_path / "disk"), "--json", str(file)])
    assert told.exit_code == 0, told.output
    found = json.loads(file.read_text())
    assert found["room"] == pytest.approx(found["weights"] / 1.3, rel=0.01)
    assert found["read"] >= found["weights"] - found["room"], "of each token"
    assert found["part"] == pytest.approx(found["tokens_per_s"] * (found["weights"] - found["room"]) / found["disk"])
    assert list((tmp_path / "disk" / "streamed" / "rank-0").glob("*/weights"))
    assert "of what the disk allows" in told.output


def test_a_group_leaves_memory_to_the_ranks() -> None:
    told = CliRunner().invoke(app, ["bench", "streaming", "demo", "--cgroup", "--memory", "1MiB"])
    assert told.exit_code == 2
    assert "leave out --memory" in told.output
