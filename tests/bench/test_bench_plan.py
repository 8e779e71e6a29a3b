"""`ferrule bench plan`: predictions beside measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.bench import planned
from ferrule.bench.published.data import read_series
from ferrule.bench.random_model import RandomModel
from ferrule.bench.splits import Cables, Setting, Subject
from ferrule.cli.bench.app import app
from ferrule.lab import obstacle

pytestmark = pytest.mark.slow


@pytest.mark.skipif(obstacle() is not None, reason="needs a lab: root, or user namespaces")
def test_published_measurements_and_the_engine_in_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cables = (Cables(1e-3), Cables(20e-3))
    others = (
        Setting(2, 1, cables[:1], shares=(3.0, 1.0)),
        Setting(2, 2, cables[:1], widths=(2, 1)),
        Setting(1, 1, (Cables(),), resident=0.9),
    )
    tiny = Subject(RandomModel.tiny(), (Setting(2, 1, cables), Setting(1, 2, cables), *others))
    mixture = Subject(RandomModel.tiny_mixture(), (Setting(2, 1, cables[:1], experts=True),), calibrates=False)
    monkeypatch.setattr(planned, "subjects", lambda *, quick: (tiny, mixture))
    file = tmp_path / "rows.json"
    result = CliRunner().invoke(app, ["plan", "--lab", "--quick", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "every order is right" in result.output
    found = json.loads(file.read_text())
    assert len(found["published"]) == sum(len(series.rows) for series in read_series())
    assert "of families not seen" in result.output
    rows = {(row["model"], row["split"]): row for row in found["lab"]}
    assert {split for _, split in rows} == {
        "tp 1",
        "tp 2",
        "pp 2",
        "tp 2 3:1",
        "2+1 ranks",
        "90% in memory",
        "tp 2 experts",
    }
    assert rows["mixture-tiny-random", "tp 2 experts"]["held_out_ms"] is not None
    streamed, whole = rows["llama-tiny-random", "90% in memory"], rows["llama-tiny-random", "tp 1"]
    assert streamed["reads"]
    assert streamed["predicted_ms"] > whole["predicted_ms"]
    alone, *split = (
        row for row in found["lab"] if row["split"] in ("tp 1", "tp 2", "pp 2") and row["model"] == "llama-tiny-random"
    )
    assert alone["predicted_ms"] == pytest.approx(alone["measured_ms"], rel=0.05)  # it calibrates
    for quick, slow in zip(split[::2], split[1::2], strict=True):
        assert slow["measured_ms"] > quick["measured_ms"]
        # A sum for each half of four layers, at both ends, and the word.
        messages = 11 if quick["split"] == "tp 2" else 2
        assert slow["predicted_ms"] - quick["predicted_ms"] == pytest.approx(19 * messages, rel=0.1)
        assert slow["measured_ms"] - quick["measured_ms"] == pytest.approx(19 * messages, rel=0.4)
    for row in found["lab"]:
        assert row["predicted_memory_mib"] == pytest.approx(row["memory_mib"], rel=0.05, abs=64)
