"""`ferrule bench vllm`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli.extras import needs
from ferrule.cli.flags import PipelineStages, RowsFile, TensorRanks
from ferrule.cli.output import new_table, wide_console, write_file
from ferrule.units import format_bytes, parse_rate, parse_seconds

EXAMPLES = (
    "Examples:\n\nferrule bench vllm --tp 2\n\nferrule bench vllm --pp 2 --tp 1\n\n"
    "ferrule bench vllm ~/models/Qwen3-8B --tp 2 --rate 10Gbit --json result.json"
)


def vllm(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As for ferrule serve; a random one of 60 million parameters.")
    ] = None,
    tp: TensorRanks = 2,
    pp: PipelineStages = 1,
    dtype: Annotated[str, typer.Option("--dtype", help="As for ferrule serve.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads per rank.")] = None,
    rate: Annotated[str, typer.Option(metavar="RATE", help="Of the cables between the emulated hosts.")] = "1Gbit",
    delay: Annotated[str, typer.Option(metavar="TIME", help="Of the cables, one way.")] = "50us",
    streams: Annotated[str, typer.Option(metavar="N,M", help="How many answers at once.")] = "1,16",
    rounds: Annotated[int, typer.Option(min=1, help="Of each number of answers.")] = 5,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 128,
    json_file: RowsFile = None,
) -> None:
    """Measure vLLM on two emulated hosts, over the fabric and over gloo, its stock transport. Needs root.

    vLLM has to be installed: ferrule engines install vllm. Says what went over gloo's cable, too, of which the fabric
    leaves nothing but what vLLM starts with.
    """
    from ferrule.engine import EngineOptions

    with needs("serve", "bench vllm"):
        from ferrule.bench.random_model import RandomModel, save_random_model
        from ferrule.bench.vllm import bench_vllm
    counts = [int(each) for each in streams.split(",")]
    console = wide_console()
    with console.status("Measuring (nothing else should run now)") as status, tempfile.TemporaryDirectory() as folder:
        if model is None:
            shape = RandomModel.sixty_million()
            model = str(save_random_model(Path(folder) / shape.name, shape))
        options = EngineOptions(
            model, tp, pp, dtype, max_context=1024, max_sequences=max(counts), threads=threads, self_test=False
        )
        rows = bench_vllm(
            options,
            rate=parse_rate(rate),
            delay=parse_seconds(delay),
            streams=counts,
            rounds=rounds,
            tokens=tokens,
            say=status.update,
        )
    title = f"vLLM, {Path(model).name}, --tp {tp} --pp {pp}, cables of {rate} and {delay}"
    columns = ("tensors over", ">at once", ">tokens/s", ">lowest", ">highest", ">fabric's cable", ">gloo's cable")
    table = new_table(*columns, title=title)
    for row in rows:
        speeds = (f"{each:.1f}" for each in (row.tokens_s, row.tokens_s_min, row.tokens_s_max))
        moved = (f"{format_bytes(round(each))}/token" for each in (row.fabric_bytes, row.gloo_bytes))
        table.add_row(row.transport, str(row.concurrency), *speeds, *moved)
    console.print(table)
    by = {(row.transport, row.concurrency): row.tokens_s for row in rows}
    for count in counts:
        console.print(f"{count} at once: {by['fabric', count] / by['gloo', count]:.2f} times as fast as over gloo")
    write_file(json_file, json.dumps([asdict(row) for row in rows], indent=1))
