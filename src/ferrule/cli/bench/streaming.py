"""`ferrule bench streaming`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.extras import needs
from ferrule.cli.flags import PipelineStages, RowsFile, TensorRanks
from ferrule.cli.output import new_table, write_file
from ferrule.errors import ConfigError
from ferrule.units import format_bytes

EXAMPLES = (
    "Examples:\n\nferrule bench streaming\n\nferrule bench streaming DIR --tp 2 --folder /mnt/nvme\n\n"
    "ferrule bench streaming DIR --cgroup"
)


def streaming(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="As for ferrule serve; by default a random one of 1 GB.")
    ] = None,
    tp: TensorRanks = 1,
    pp: PipelineStages = 1,
    weights: Annotated[str | None, typer.Option(help="int8 or int4: quantise plain weights.")] = None,
    times: Annotated[float, typer.Option(min=1.01, help="Weights are so many times their memory.")] = 1.5,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE|auto", help="Memory for each rank's weights, in the place of --times.")
    ] = None,
    cgroup: Annotated[
        bool, typer.Option("--cgroup", help="The kernel holds the ranks to that, with all that they have; as root.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Of the disk that is read.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Answers.")] = 3,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 32,
    json_file: RowsFile = None,
) -> None:
    """Measure a model that is larger than its ranks' memory, beside what the disk allows."""
    import asyncio

    from ferrule.cli.serving.options import stream_weights_of
    from ferrule.engine import EngineOptions

    with needs("serve", "bench streaming"):
        from ferrule.bench.random_model import given_or_random
        from ferrule.bench.streaming import BAR, bench_streaming
    if cgroup and memory is not None:
        raise ConfigError("--cgroup leaves it to the ranks how much memory weights have: leave out --memory")
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="ferrule-bench-") as scratch,
        console.status("Measuring (nothing else should run now)") as status,
    ):
        directory = given_or_random(model, Path(scratch), status.update, quick=False) if model is None else model
        room = stream_weights_of(memory)
        options = EngineOptions(str(directory), tensor=tp, pipeline=pp, weights=weights, stream_weights=room)
        measuring = bench_streaming(options, folder, times=times, rounds=rounds, tokens=tokens, limited=cgroup)
        found = asyncio.run(measuring)
    table = new_table("", ">", title=f"{found.model}, {found.ranks} rank{'s' if found.ranks > 1 else ''}")
    table.add_row("weights", format_bytes(found.weights))
    if found.limit:
        table.add_row("memory limit of the ranks' control group", format_bytes(found.limit))
        table.add_row("of this used, page cache included", format_bytes(found.peak))
    table.add_row("of these in memory at most", format_bytes(found.room * found.ranks) if found.room else "as fits")
    table.add_row("without room, and so read for a token at least", format_bytes(round(found.needed)))
    table.add_row("read for a token", format_bytes(round(found.read)))
    table.add_row(f"disk, {found.how}", f"{format_bytes(round(found.disk))}/s")
    table.add_row("tokens/s that the disk allows", f"{found.bound:.3g}")
    table.add_row("tokens/s", f"{found.tokens_per_s:.3g}")
    table.add_row("part of the time in which the driver waited for its disk", f"{found.waited:.0%}")
    console.print(table)
    console.print(f"{found.part:.0%} of what the disk allows (at least {BAR:.0%} is wanted)", highlight=False)
    write_file(json_file, json.dumps({**asdict(found), "bound": found.bound, "part": found.part}, indent=1))
