"""`ferrule bench structured`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.extras import needs
from ferrule.cli.flags import PipelineStages, RowsFile, TensorRanks
from ferrule.cli.output import new_table, write_file

EXAMPLES = "Examples:\n\nferrule bench structured demo\n\nferrule bench structured DIR --tp 2 --json result.json"


def structured(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for ferrule serve.")] = "demo",
    tp: TensorRanks = 1,
    pp: PipelineStages = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Answers of each kind.")] = 7,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of an answer.")] = 128,
    json_file: RowsFile = None,
) -> None:
    """Measure how much longer a token takes that follows a JSON schema."""
    import asyncio

    from ferrule.engine import EngineOptions

    with needs("serve", "bench structured"):
        from ferrule.bench.structured import bench_structured
    console = Console()
    with console.status("Measuring (nothing else should run now)"):
        options = EngineOptions(model, tensor=tp, pipeline=pp)
        found = asyncio.run(bench_structured(options, rounds=rounds, tokens=tokens))
    table = new_table("answers", ">ms per token", ">longest gap", title=f"{found.model}, {rounds} answers of each kind")
    table.add_row("free", f"{found.free_ms:.3f}", f"{found.free_most_ms:.3f}")
    table.add_row("of a JSON schema", f"{found.constrained_ms:.3f}", f"{found.constrained_most_ms:.3f}")
    table.add_row("of strings in JSON", f"{found.strings_ms:.3f}", f"{found.strings_most_ms:.3f}")
    console.print(table)
    schema = f"a token of a schema takes {found.slower:+.1%} (at most +5 % is wanted)"
    console.print(f"{schema}, of strings {found.strings_slower:+.1%}", highlight=False)
    slower = {"slower": found.slower, "strings_slower": found.strings_slower}
    write_file(json_file, json.dumps({**asdict(found), **slower}, indent=1))
