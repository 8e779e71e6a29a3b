"""The tables of `ferrule bench` in a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table

from ferrule.bench.decode import DecodeRow
from ferrule.bench.fabric.bars import Bar
from ferrule.cli.bench.decode import _table as decode_table
from ferrule.cli.bench.fabric import _bars_table as bars_table


def shown(table: Table) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_bars_keep_their_heads_and_numbers() -> None:
    what = "busy cores, two ranks on two emulated hosts, tcp 2097152 B: ferrule-torch / native"
    told = shown(bars_table([Bar(what, 1234.5, "µs", 1234.5, 1200.1, at_least=True)]))
    for word in ("what", "bar", "median", "min", "met", "≥ 1234.5 µs", "1200", "yes"):
        assert word in told
    assert "…" not in told


def test_decode_keeps_its_heads_and_numbers() -> None:
    names = (("ferrule", 1), ("ferrule", 2), ("transformers", 1), ("transformers-tp-gloo", 2))
    rows = [DecodeRow("m", "bfloat16", impl, n, 1, 1234.5, 1334.5, 1434.5, 1000.5) for impl, n in names]
    told = shown(decode_table(rows, 2))
    for word in ("implementation", "ranks", "min", "median", "p99", "tokens", "per s", "× TP over", "Gloo", "1434.5"):
        assert word in told
    assert "transformers-tp-gloo" in told
    assert "1.00, 1.00" in told
    assert "…" not in told
