"""`ferrule bench speculation`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.extras import needs
from ferrule.cli.flags import PipelineStages, RowsFile, TensorRanks
from ferrule.cli.output import new_table, write_file
from ferrule.errors import ConfigError
from ferrule.units import parse_seconds

EXAMPLES = (
    "Examples:\n\nferrule bench speculation demo --tp 2\n\n"
    "ferrule bench speculation demo --tp 2 --delay 300us --json result.json\n\n"
    "ferrule bench speculation ~/models/Qwen3-8B --pp 2 --speculate ngram:16\n\n"
    "ferrule bench speculation ~/models/Qwen3-32B --tp 2 --speculate draft=~/models/Qwen3-0.6B"
)


def speculation(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for ferrule serve.")] = "demo",
    tp: TensorRanks = 1,
    pp: PipelineStages = 1,
    dtype: Annotated[str, typer.Option("--dtype", help="As for ferrule serve.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads per rank.")] = None,
    speculate: Annotated[
        str,
        typer.Option("--speculate", metavar="ngram[:K]|mtp[:K]|draft=MODEL[:K]", help="What is compared with none."),
    ] = "ngram",
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Put the ranks on two emulated hosts, whose cable adds so much, such as 300us."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Answers of each kind.")] = 5,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of an answer.")] = 256,
    json_file: RowsFile = None,
) -> None:
    """Measure tokens per second of one stream with speculation and without."""
    from ferrule.engine import EngineOptions

    with needs("serve", "bench speculation"):
        from ferrule.bench.speculation import bench_speculation
    if speculate == "off":
        raise ConfigError(
            "--speculate off is what the other is compared with: say ngram[:K], mtp[:K] or draft=MODEL[:K]"
        )
    options = EngineOptions(model, tp, pp, dtype, threads=threads, self_test=False, speculate=speculate)
    seconds = None if delay is None else parse_seconds(delay)
    console = Console()
    with console.status("Measuring (nothing else should run now)") as status:
        found = bench_speculation(options, delay=seconds, rounds=rounds, tokens=tokens, say=status.update)
    title = f"{found.model}, one stream, tokens/s" + ("" if delay is None else f", a cable of {delay}")
    table = new_table("text", ">off", f">{speculate}", ">faster", ">guessed", ">right", ">same answers", title=title)
    for row in found.rows:
        right = f"{row.accepted / row.drafted:.0%}" if row.drafted else ""
        speeds = f"{row.plain:.1f}", f"{row.guessing:.1f}", f"{row.faster:.2f}×"
        table.add_row(row.text, *speeds, str(row.drafted), right, f"{row.same} of {found.rounds}")
    console.print(table)
    rows = [{**asdict(row), "faster": row.faster} for row in found.rows]
    write_file(json_file, json.dumps({**asdict(found), "rows": rows}, indent=1))
