"""The benchmark of quantised keys and values reads a text with every kind of cache, and tells what that costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.bench.kv_cache import reference_text
from ferrule.cli.main import app


@pytest.mark.slow
def test_the_embedded_model_reads_with_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    (tmp_path / "text").write_text(reference_text()[:3000])
    words = ["bench", "kv-cache", "demo", "--text", str(tmp_path / "text"), "--tokens", "400", "--json", str(file)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    plain, eight, four = json.loads(file.read_text())
    assert [each["kv_cache"] for each in (plain, eight, four)] == ["auto", "int8", "int4"]
    assert [each["bytes_per_token"] for each in (plain, eight, four)] == [3072, 3072 * 8.5 / 16, 3072 * 4.5 / 16]
    assert plain["apart"] == 0 < eight["apart"] < 0.05 < four["apart"] < 0.5
    assert plain["same"] == 1 >= eight["same"] > four["same"] > 0.7
    assert plain["perplexity"] == pytest.approx(eight["perplexity"], rel=0.01)


def test_a_text_that_is_not_there_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["bench", "kv-cache", "demo", "--text", str(tmp_path / "none")])
    assert (told.exit_code, "cannot be read" in told.output) == (2, True)
