"""`ferrule bench hand-over`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.extras import needs
from ferrule.cli.flags import PipelineStages, RowsFile, TensorRanks
from ferrule.cli.output import new_table, write_file
from ferrule.units import format_bytes, parse_rate

EXAMPLES = (
    "Examples:\n\nferrule bench hand-over demo\n\n"
    "ferrule bench hand-over ~/models/Qwen3-8B --tp 2 --prefill-tp 2 --rate 10Gbit --prompt 8192"
)


def hand_over(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for ferrule serve.")] = "demo",
    tp: TensorRanks = 1,
    pp: PipelineStages = 1,
    prefill_tp: Annotated[int, typer.Option("--prefill-tp", min=1, help="As for ferrule serve.")] = 1,
    dtype: Annotated[str, typer.Option("--dtype", help="As for ferrule serve.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads per rank.")] = None,
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="Of the cable between the emulated hosts of the two groups.")
    ] = "1Gbit",
    prompt: Annotated[int, typer.Option(min=129, help="Tokens of a prompt.")] = 960,
    rounds: Annotated[int, typer.Option(min=1, help="Prompts of each kind.")] = 5,
    json_file: RowsFile = None,
) -> None:
    """Measure prompts that other ranks compute: each layer sent as it is computed, beside whole prompts sent then."""
    from ferrule.engine import EngineOptions

    with needs("serve", "bench hand-over"):
        from ferrule.bench.hand_over import HIDDEN_BAR, bench_hand_over
    options = EngineOptions(model, tp, pp, dtype, threads=threads, self_test=False)
    console = Console()
    with console.status("Measuring (nothing else should run now)") as status:
        found = bench_hand_over(
            options, prefill_tp, rate=parse_rate(rate), tokens=prompt, rounds=rounds, say=status.update
        )
    title = f"{found.model}, prompts of {prompt} tokens, {format_bytes(found.size)} over a cable of {rate}"
    table = new_table("handed over", ">first token", ">behind the last layer", title=title)
    for name, one in (("each layer at once", found.streamed), ("when all is computed", found.whole)):
        table.add_row(name, f"{one.first_token:.3f} s", f"{1e3 * one.behind:.1f} ms")
    console.print(table)
    met = "" if found.hidden >= HIDDEN_BAR else f", less than the {HIDDEN_BAR:.0%} that are wanted"
    console.print(f"{found.hidden:.0%} of sending is hidden{met}; the first token comes {found.sooner:.3f} s sooner")
    write_file(json_file, json.dumps({**asdict(found), "hidden": found.hidden, "sooner": found.sooner}, indent=1))
