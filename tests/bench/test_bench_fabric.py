"""The fabric's benchmark gives the rows that others read."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.bench import bench_fabric
from ferrule.cli.bench import app
from ferrule.errors import ConfigError

KEYS = ["op", "bytes", "dtype", "transport", "ranks", "impl", "min_us", "median_us", "p99_us"]


def test_rows_and_table(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = ["fabric", "--quick", "--sizes", "64,8KiB", "--json", str(out)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())
    assert [list(row) for row in rows] == [KEYS] * len(rows)
    wanted = {("ferrule", "shm"), ("ferrule", "tcp")} | ({("gloo", "tcp")} if find_spec("torch") else set())
    assert {(row["impl"], row["transport"]) for row in rows} == wanted
    assert {row["bytes"] for row in rows} == {64, 8192}
    for row in rows:
        assert (row["op"], row["dtype"], row["ranks"]) == ("all_reduce", "float32", 2)
        assert 0 < row["min_us"] <= row["median_us"] <= row["p99_us"]
    assert "ferrule shm" in result.output
    assert "8 KiB" in result.output


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        bench_fabric(ranks=1)
    with pytest.raises(ConfigError, match="multiple of 4"):
        bench_fabric(sizes=[10])
