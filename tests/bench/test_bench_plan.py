"""`ferrule bench plan`: predictions beside measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.bench import planned
from ferrule.bench.published.data import read_series
from ferrule.cli.bench.app import app
from ferrule.lab import obstacle

pytestmark = pytest.mark.slow


@pytest.mark.skipif(obstacle() is not None, reason="needs a lab: root, or user namespaces")
def test_published_measurements_and_the_engine_in_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cables = (planned.Cables(1e-3), planned.Cables(20e-3))
    monkeypatch.setattr(planned, "SETTINGS", (planned.Setting(2, 1, cables), planned.Setting(1, 2, cables)))
    file = tmp_path / "rows.json"
    result = CliRunner().invoke(app, ["plan", "--lab", "--quick", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "every order is right" in result.output
    found = json.loads(file.read_text())
    assert len(found["published"]) == sum(len(series.rows) for series in read_series())
    assert "of families not seen" in result.output
    alone, *split = found["lab"]
    assert alone["predicted_ms"] == pytest.approx(alone["measured_ms"], rel=0.05)  # it calibrates
    for quick, slow in zip(split[::2], split[1::2], strict=True):
        assert slow["measured_ms"] > quick["measured_ms"]
        messages = 11 if quick["tensor"] == 2 else 2  # a sum for each half of four layers, at both ends, and the word
        assert slow["predicted_ms"] - quick["predicted_ms"] == pytest.approx(19 * messages, rel=0.1)
        assert slow["measured_ms"] - quick["measured_ms"] == pytest.approx(19 * messages, rel=0.4)
    for row in found["lab"]:
        assert row["predicted_memory_mib"] == pytest.approx(row["memory_mib"], rel=0.05, abs=64)
