"""The benchmark of structured output runs, and says how much longer each kind of answer takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app

pytestmark = pytest.mark.slow


def test_free_and_constrained_answers_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    told = CliRunner().invoke(
        app, ["bench", "structured", "demo", "--rounds", "1", "--tokens", "8", "--json", str(file)]
    )
    assert told.exit_code == 0, told.output
    found = json.loads(file.read_text())
    assert found["free_ms"] > 0
    assert found["slower"] == pytest.approx(found["constrained_ms"] / found["free_ms"] - 1)
    assert found["strings_slower"] == pytest.approx(found["strings_ms"] / found["free_ms"] - 1)
    assert "of a JSON schema" in told.output
