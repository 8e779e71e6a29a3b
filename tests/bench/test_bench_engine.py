"""`ferrule bench engine` from the outside, on its tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "ferrule.cli.main", "bench", "engine", "--quick"]
LLAMA_BENCH = """#!/usr/bin/env python3
import json, sys
flags = dict(zip(sys.argv[1:-1], sys.argv[2:]))
assert open(flags["-m"], "rb").read(4) == b"GGUF"
print(json.dumps([{"avg_ts": 50.0 if flags["-p"] == "0" else 400.0}]))
"""


@pytest.mark.slow
def test_every_contestant_takes_its_turns(tmp_path: Path) -> None:
    rows_file, picture, tools = tmp_path / "rows.json", tmp_path / "engine.png", tmp_path / "bin"
    tools.mkdir()
    (tools / "llama-bench").write_text(LLAMA_BENCH)
    (tools / "llama-bench").chmod(0o755)
    flags = ["--formats", "bfloat16", "--json", str(rows_file), "--plot", str(picture), "--llama-cpp", str(tools)]
    keyed = {**os.environ, "FERRULE_API_KEY": "what clients of this user's own server must send"}
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=360, env=keyed)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(rows_file.read_text())
    told = {
        (row["impl"], row["ranks"], row["threads"], row["format"], row["phase"], row["concurrency"]) for row in rows
    }
    one_by_one = {("ferrule", 1, 1), ("ferrule", 2, 1), ("llama.cpp", 1, 1), ("llama.cpp", 1, 2)}
    playing = one_by_one | {("transformers", 1, 1)}
    assert told >= {(*who, "bfloat16", phase, 1) for who in playing for phase in ("decode", "prefill")}
    assert told >= {("ferrule", 2, 1, "bfloat16", "serve", streams) for streams in (1, 4)}
    assert told >= {("ferrule", 2, 1, "bfloat16", phase, 1) for phase in ("whole", "prefix")}
    assert told >= {("ferrule", 2, 1, "bfloat16", phase, 8) for phase in ("alone", "beside")}
    for row in rows:
        assert 0 < row["tokens_s_min"] <= row["tokens_s_median"] <= row["tokens_s_max"]
        assert (row["ttft_ms"] is None) == (row["phase"] in ("decode", "alone"))
        assert (row["itl_p50_ms"] is None) == (row["phase"] in ("prefill", "whole", "prefix"))
    peer = [row for row in rows if row["impl"] == "llama.cpp"]
    assert {(row["phase"], round(row["tokens_s_median"])) for row in peer} == {("decode", 50), ("prefill", 400)}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--formats", "int5"], "there is no 'int5'; there are bfloat16, int8, int4"),
        (["--levels", "many"], "'many' is no list of whole numbers"),
        (["--llama-cpp", "/nowhere"], "/nowhere holds neither llama-bench nor llama-server"),
        (["--vllm", "/nowhere/vllm"], "there is no /nowhere/vllm"),
        (["--json", "/nowhere/rows.json"], "/nowhere is no folder"),
    ],
)
def test_what_cannot_be_measured_is_said_first(flags: list[str], said: str) -> None:
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert said in done.stderr
