"""`ferrule bench mlx` from the outside: its rows, its table, and what it does without one of the two."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.bench import mlx
from ferrule.cli.main import app
from ferrule.errors import FabricError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("mlx") is None, reason="MLX is not installed")]
EVALUATION, _, SUM, _, TOKEN, _ = mlx.SUBJECTS


def test_rows_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = [replace(one, samples=min(one.samples, 3)) for one in (EVALUATION, SUM, TOKEN)]
    monkeypatch.setattr(mlx, "SUBJECTS", subjects)
    out = tmp_path / "rows.json"
    result = CliRunner().invoke(app, ["bench", "mlx", "--quick", "--json", str(out)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())
    measured = subjects if find_spec("mlx_lm") is not None else subjects[:2]
    assert [(row["where"], row["what"], row["bar"]) for row in rows] == [
        ("this machine", one.what, one.bar) for one in measured
    ]
    assert all(row["ferrule_us"] > 0 and row["ring_us"] > 0 and row["ratio"] > 0 for row in rows)
    assert "all_sum of 8 KiB" in result.output


@pytest.mark.usefixtures("emulated_hosts")
def test_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx, "SUBJECTS", [replace(SUM, samples=3)])
    assert [(row.where, row.bar) for row in mlx.bench_mlx(lab=True, quick=True)] == [
        ("this machine", 2.0),
        ("two hosts", 1.2),
    ]


def test_a_contestant_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx, "SUBJECTS", [replace(SUM, op="nothing")])
    with pytest.raises(FabricError, match=r"MLX on Ferrule: .*nothing"):
        mlx.bench_mlx(lab=False, quick=True)
