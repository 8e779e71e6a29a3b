"""`ferrule bench decode` from the outside, on its tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_contestant_takes_its_turns(tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "ferrule.cli.main", "bench", "decode", "--quick", "--json", str(rows_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "transfor" in done.stdout
    rows = json.loads(rows_file.read_text())
    contestants = [("ferrule", 1), ("ferrule", 2), ("transformers", 1), ("transformers-tp-gloo", 2)]
    assert [(row["impl"], row["ranks"]) for row in rows] == contestants
    for row in rows:
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["p99_ms"]
        assert row["tokens_per_s"] == pytest.approx(1e3 / row["median_ms"])
        assert (row["dtype"], row["threads"]) == ("bfloat16", 1)
