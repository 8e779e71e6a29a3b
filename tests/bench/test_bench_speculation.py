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
def test_each_kind_of_text_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    words = ["speculation", "demo", "--rounds", "1", "--tokens", "48", "--dtype", "float32", "--json", str(file)]
    told = CliRunner().invoke(app, ["bench", *words])
    assert told.exit_code == 0, told.output
    repeated, *others = json.loads(file.read_text())["rows"]
    assert [each["text"] for each in others] == ["own", "random"]
    assert {each["same"] for each in (repeated, *others)} == {1}
    assert repeated["drafted"] >= repeated["accepted"] > 20
    assert repeated["faster"] == pytest.approx(repeated["guessing"] / repeated["plain"])
    assert "repeated" in told.output
