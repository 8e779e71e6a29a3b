"""`ferrule bench fabric` from the outside: its rows, tables, files and refusals."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ferrule.bench.fabric import Sweep, bars, bench_fabric, contestants, launchers, sweep
from ferrule.bench.fabric.contestants import missing
from ferrule.bench.fabric.operations import OPERATIONS
from ferrule.bench.fabric.sweep import IMPLS
from ferrule.cli.main import app
from ferrule.errors import ConfigError

KEYS = [
    *("op", "bytes", "dtype", "transport", "ranks", "rails", "impl"),
    *("min_us", "median_us", "p99_us", "bus_gb_s"),
]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that take little time: the values measured do not matter here."""
    monkeypatch.setattr(sweep, "turn_us", lambda quick: 2e3)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "fabric", "--quick", *arguments], env={"COLUMNS": "100"})


@pytest.mark.slow
def test_rows_and_table(tmp_path: Path) -> None:
    out, table = tmp_path / "rows.json", tmp_path / "rows.csv"
    result = run(
        *("--ops", "all_reduce,send_recv,barrier", "--sizes", "64,8KiB", "--impls", "ferrule,ferrule-native"),
        *("--json", str(out), "--csv", str(table)),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())
    assert [list(row) for row in rows] == [KEYS] * len(rows)
    assert [list(row) for row in csv.DictReader(table.open())] == [KEYS] * len(rows)
    ours = {(row["op"], row["bytes"], row["impl"], row["transport"]) for row in rows if row["impl"] != "raw"}
    cells = [("all_reduce", 64), ("all_reduce", 8192), ("send_recv", 64), ("send_recv", 8192), ("barrier", 0)]
    assert ours == {(*cell, i, t) for cell in cells for i in ("ferrule", "ferrule-native") for t in ("shm", "tcp")}
    # The limits once per size.
    raw = [(row["op"], row["transport"], row["bytes"]) for row in rows if row["impl"] == "raw"]
    limits = [("send_recv", "tcp"), ("exchange", "tcp-both"), ("send_recv", "shm"), ("memcpy", "memory")]
    assert sorted(raw) == sorted((*limit, size) for limit in limits for size in (64, 8192))
    for row in rows:
        assert row["rails"] == 1
        assert 0 < row["min_us"] <= row["median_us"] <= row["p99_us"]
        assert (row["bus_gb_s"] > 0) == (row["bytes"] > 0)
    assert "ferrule-native shm" in result.output
    assert "8 KiB" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.slow
def test_every_operation_beside_every_peer(tmp_path: Path) -> None:
    """Each that is installed here. With three ranks, which small runners have no cores for."""
    out, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    options = ["--ops", "all", "--sizes", "96", "--ranks", "3", "--rails", "1,2", "--json", str(out)]
    if find_spec("matplotlib"):
        options += ["--plot", str(picture)]
    result = run(*options)
    assert result.exit_code == 0, result.output
    assert "is left out" not in result.output
    rows = json.loads(out.read_text())
    here = {impl for impl in IMPLS if missing(impl) is None}
    assert {row["impl"] for row in rows} == here | {"raw"}
    for impl in here - {"mlx-ring"}:
        assert {row["op"] for row in rows if row["impl"] == impl} == set(OPERATIONS)
    assert {row["ranks"] for row in rows if row["impl"] != "raw"} == {3}
    assert {(row["transport"], row["rails"]) for row in rows if row["impl"] == "ferrule"} == {
        ("shm", 1),
        ("tcp", 1),
        ("tcp", 2),
    }
    if find_spec("matplotlib"):
        assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_bars_are_a_report_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"impls": ("ferrule-native",), "transports": ("shm",)}
    monkeypatch.setattr(bars, "PAIR", Sweep(sizes=(64,), **few))
    monkeypatch.setattr(bars, "CROWD", Sweep(sizes=(8,), ranks=(4,), **few))
    monkeypatch.setattr(bars, "BUSY", Sweep(sizes=(8,), busy=True, **few))
    result = run("--bars")
    assert result.exit_code == 0, result.output
    lines = {line.partition("≤")[0].strip(): line.split() for line in result.output.splitlines()}
    assert lines["shm 64 B: native / raw one way"][-1] in ("yes", "no")
    assert lines["shm 64 B: native / Open MPI"][-1] == "—"
    assert lines["4 ranks, shm 8 B: 99 % of native"][-1] in ("yes", "no")
    assert lines["busy cores, shm 8 B: native"][-1] in ("yes", "no")
    assert "cables, 1 + 0.4 Gb/s: all_reduce / sum" in result.output


@pytest.mark.soak  # as the bars above do
def test_busy_cores_disturb_but_do_not_stop_it() -> None:
    result = bench_fabric(Sweep(sizes=(64,), impls=("ferrule-native",), transports=("shm",), quick=True, busy=True))
    assert [row["impl"] for row in result.rows] == ["ferrule-native"]  # the limits would not be any


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "10"], "10 bytes are no whole number of float32"),
        (["--sizes", "many"], "'many' is not a size"),
        (["--sizes", ","], "--sizes is empty"),
        (["--ops", "all_reduce,shuffle"], "--ops: there is no 'shuffle'"),
        (["--dtypes", "float8"], "--dtypes: there is no 'float8'"),
        (["--transports", "pigeon"], "--transports='pigeon'"),
        (["--impls", "nccl"], "--impls: there is no 'nccl'"),
        (["--ranks", "1"], "at least 2"),
        (["--ranks", "two"], "--ranks: 'two' is no number"),
        (["--rails", "0"], "--rails: at least 1, not 0"),
        (["--csv", "/nowhere/rows.csv"], "/nowhere is no folder"),
    ],
)
def test_refuses(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output


@pytest.mark.slow
def test_a_missing_peer_is_a_note_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants.shutil, "which", lambda name: None)
    sweep = {"sizes": (64,), "transports": ("tcp",), "quick": True}
    with pytest.raises(ConfigError, match="apt install openmpi-bin libopenmpi-dev"):
        bench_fabric(Sweep(impls=["ferrule", "openmpi"], **sweep))
    monkeypatch.setattr(contestants, "find_spec", lambda name: None)
    result = bench_fabric(Sweep(**sweep))
    assert {row["impl"] for row in result.rows} == {"ferrule", "ferrule-native", "raw"}
    assert [note.partition(" ")[0] for note in result.notes] == ["ferrule-torch", "gloo", "openmpi", "mlx-ring"]
    assert "PyTorch is not installed" in result.notes[0]


@pytest.mark.parametrize(
    ("transport", "version", "module"),
    [
        ("shm", "mpirun (Open MPI) 4.1.4\n", "vader"),
        ("shm", "mpirun (Open MPI) 5.0.3\n", "sm"),
        ("tcp", "mpirun (Open MPI) 5.0.3\n", "tcp"),
    ],
)
def test_open_mpi_renamed_its_shared_memory(transport: str, version: str, module: str) -> None:
    assert launchers.transport_of_openmpi(transport, version) == module
