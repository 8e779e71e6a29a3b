"""The tables of `ferrule bench` in a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table

from ferrule.bench.engine.rows import EngineRow
from ferrule.bench.fabric.bars import Bar
from ferrule.cli.bench.engine import _table as engine_table
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


def test_engines_keep_their_heads_and_numbers() -> None:
    rows = [
        EngineRow("transformers", 1, 16, "bfloat16", "decode", 1, 12.34, 1.234, 123.4, None, 81.2, 99.9),
        EngineRow("llama.cpp", 1, 2, "int8", "prefill", 1, 1234.5, 1034.5, 2234.5, 812.3, None, None),
        EngineRow("ferrule", 2, 1, "int4", "serve", 64, 12345.6, 1.5, 99999.9, 8123.4, 123.4, 1234.5),
    ]
    told = shown(engine_table(rows, 2))
    for word in ("engine", "ranks", "weights", "phase", "streams", "tok/s", "min", "max", "first", "gap", "p99"):
        assert word in told
    for word in ("transformers", "1×16", "bfloat16", "prefill", "12346", "100000", "8123", "1234"):
        assert word in told
    assert "…" not in told
