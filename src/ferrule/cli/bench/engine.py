"""`ferrule bench engine`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ferrule.cli.extras import needs
from ferrule.cli.flags import RowsFile
from ferrule.cli.output import check_folders, new_table, write_file
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from ferrule.bench.engine.rows import EngineRow

EXAMPLES = (
    "Examples:\n\nferrule bench engine\n\nferrule bench engine --quick --json rows.json\n\n"
    "ferrule bench engine --formats bfloat16,int4 --levels 1,16 --llama-cpp ~/llama.cpp/build/bin --plot engine.png\n\n"
    "ferrule bench engine --model ~/models/Qwen3-8B --ranks 2 --threads 4"
)


def engine(
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny model and few turns: shows that it runs, not how fast.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Measure this model, not a random 0.5B Llama.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=2, help="Tensor parallel ranks beside the single one.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per rank.")] = 1,
    formats: Annotated[
        str, typer.Option(metavar="A,B", help="Of weights: bfloat16 (as stored), int8, int4.")
    ] = "bfloat16,int8,int4",
    levels: Annotated[
        str, typer.Option(metavar="N,M", help="Streams at once through HTTP; empty: no servers.")
    ] = "1,4,16,64",
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each contestant takes.")] = 5,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per turn.")] = 32,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where llama-bench and llama-server lie; else they are searched for."),
    ] = None,
    vllm: Annotated[
        Path | None, typer.Option(metavar="FILE", help="vLLM's command, which may be of another environment.")
    ] = None,
    json_file: RowsFile = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Also draw the rows into this file.")] = None,
) -> None:
    """Tokens per second of decoding, prompts and serving, by format of the weights, beside other engines."""
    check_folders((json_file, plot_file))
    try:
        streams = [int(each) for each in levels.split(",") if each.strip()]
    except ValueError:
        raise ConfigError(f"--levels: {levels!r} is no list of whole numbers") from None
    if any(each < 1 for each in streams):
        raise ConfigError("--levels: there is at least 1 stream")
    with needs("bench", "bench engine"):
        from ferrule.bench.engine.plot import plot
        from ferrule.bench.engine.rows import to_json
        from ferrule.bench.engine.run import Peers, bench_engine
        from ferrule.process import usable_cores

    console = Console()
    with console.status("Measuring engines (nothing else should run now)") as status:
        rows = bench_engine(
            serve=[sys.executable, "-m", "ferrule.cli.main", "serve"],
            quick=quick,
            model=model,
            ranks=ranks,
            threads=threads,
            formats=[each.strip() for each in formats.split(",") if each.strip()],
            levels=streams,
            rounds=rounds,
            tokens=tokens,
            peers=Peers.found(llama_cpp, vllm),
            say=status.update,
            note=lambda line: console.print(line, markup=False),
        )
    console.print(_table(rows, usable_cores()))
    write_file(json_file, to_json(rows) + "\n")
    if plot_file is not None:
        plot(rows, plot_file)
        console.print(f"wrote {plot_file}")


def _table(rows: list[EngineRow], cores: int) -> Table:
    """Ranks are followed by their threads where they have several. The last columns are medians, in milliseconds."""
    columns = (">!ranks", "!weights", "!phase", ">!streams", ">!tok/s", ">!min", ">!max", ">!first", ">!gap", ">!p99")
    title = f"{cores} cores; tokens/s by medians of turns; first token and gaps in ms"
    table = new_table("!engine", *columns, title=title, box=box.SIMPLE_HEAD, padding=0)  # 80 columns
    before: tuple[str, str] | None = None
    for each in rows:
        if before not in (None, (each.format, each.phase)):
            table.add_section()
        before = each.format, each.phase
        placed = str(each.ranks) if each.threads == 1 else f"{each.ranks}×{each.threads}"
        speeds = (each.tokens_s_median, each.tokens_s_min, each.tokens_s_max)
        times = (each.ttft_ms, each.itl_p50_ms, each.itl_p99_ms)
        table.add_row(
            each.impl, placed, each.format, each.phase, str(each.concurrency), *(_short(value) for value in speeds),
            *("" if value is None else _short(value) for value in times),
        )  # fmt: skip
    return table


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
