"""The benchmark of speculation runs: answers are the same, and those that repeat themselves are guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app


def test_there_is_something_to_compare() -> None:
    told = CliRunner().invoke(app, ["bench", "speculation", "demo", "--speculate", "off"])
    assert told.exit_code != 0
    assert "compared with" in told.output


@pytest.mark.slow
def test_both_kinds_of_text_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    words = ["speculation", "demo", "--rounds", "1", "--tokens", "48", "--dtype", "float32", "--json", str(file)]
    told = CliRunner().invoke(app, ["bench", *words])
    assert told.exit_code == 0, told.output
    repetitive, other = json.loads(file.read_text())["rows"]
    assert repetitive["same"] == other["same"] == 1
    assert 0 < repetitive["accepted"] <= repetitive["drafted"]
    assert repetitive["faster"] == pytest.approx(repetitive["guessing"] / repetitive["plain"])
    assert "repetitive" in told.output
