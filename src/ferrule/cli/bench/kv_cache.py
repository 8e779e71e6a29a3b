"""`ferrule bench kv-cache`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.extras import needs
from ferrule.cli.flags import RowsFile
from ferrule.cli.output import new_table, write_file
from ferrule.cli.serving.model import Device, Dtype, Pp, Tp, Weights
from ferrule.errors import ConfigError

EXAMPLES = "Examples:\n\nferrule bench kv-cache demo\n\nferrule bench kv-cache DIR --text mine.txt --tokens 8192 --tp 2"


def kv_cache(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for ferrule serve.")] = "demo",
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What the model reads; left out: the reference of the Python language."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="How many of its tokens.")] = 2048,
    tp: Tp = None,
    pp: Pp = None,
    dtype: Dtype = "auto",
    weights: Weights = None,
    device: Device = None,
    json_file: RowsFile = None,
) -> None:
    """Measure what quantised keys and values (`ferrule serve --kv-cache`) cost in quality."""
    import asyncio

    from ferrule.engine import EngineOptions
    from ferrule.engine.device_names import CPU

    with needs("serve", "bench kv-cache"):
        from ferrule.bench.kv_cache import bench_kv_cache, reference_text
    try:
        given = reference_text() if text is None else text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {text} cannot be read: {error}") from None
    console = Console()
    notes: list[str] = []
    options = EngineOptions(model, tp or 1, pp or 1, dtype, weights=weights, device=device or CPU)
    with console.status("Loading") as shown:
        rows = asyncio.run(bench_kv_cache(options, given, tokens, say=shown.update, note=notes.append))
    table = new_table("keys and values", ">bytes/token", ">perplexity", ">log-probability off", ">same likeliest")
    for row in rows:
        size, off = f"{row.bytes_per_token:,.0f}", f"{row.apart:.4f}"
        table.add_row(row.kv_cache, size, f"{row.perplexity:.3f}", off, f"{row.same:.1%}")
    console.print(table)
    for line in notes:
        console.print(line, highlight=False)
    write_file(json_file, json.dumps([asdict(row) for row in rows], indent=1))
