"""`ferrule bench decode`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ferrule.cli.extras import needs
from ferrule.cli.flags import RowsFile
from ferrule.cli.output import new_table, write_file

if TYPE_CHECKING:
    from ferrule.bench.decode import DecodeRow

EXAMPLES = (
    "Examples:\n\nferrule bench decode\n\nferrule bench decode --quick\n\n"
    "ferrule bench decode --model ~/models/Qwen3-8B --ranks 2 --threads 4 --json rows.json"
)


def decode(
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny model and few tokens: shows that it runs, not how fast.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Measure this model, not a random 0.5B Llama.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=2, help="Tensor parallel ranks beside the single one.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per rank.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each contestant takes.")] = 5,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per turn.")] = 24,
    json_file: RowsFile = None,
) -> None:
    """Tokens per second at batch 1: one rank, several, and transformers alone and over Gloo, taking turns."""
    with needs("bench", "bench decode"):
        import accelerate  # noqa: F401 - transformers' tensor parallelism needs it

        from ferrule.bench.decode import bench_decode, to_json
        from ferrule.process import usable_cores

    console = Console()
    with console.status("Measuring decode (nothing else should run now)") as status:
        rows = bench_decode(
            quick=quick,
            model=model,
            ranks=ranks,
            threads=threads,
            rounds=2 if quick else rounds,
            tokens=tokens,
            say=status.update,
        )
    console.print(_table(rows, usable_cores()))
    write_file(json_file, to_json(rows) + "\n")


def _table(rows: list[DecodeRow], cores: int) -> Table:
    """The last columns: how many times faster than one Ferrule rank, and than transformers' tensor parallelism; by the
    minimum and by the median, since ranks that go in step feel what disturbs any of their cores."""
    alone = next(row for row in rows if row.impl == "ferrule" and row.ranks == 1)
    peer = next(row for row in rows if row.impl == "transformers-tp-gloo")
    first = rows[0]
    title = f"{first.model}, {first.dtype}, batch 1, {first.threads} thread(s) per rank, {cores} cores; ms per token"
    columns = (">!ranks", ">!min", ">!median", ">!p99", ">!tokens\nper s", ">!× one\nrank", ">!× TP over\nGloo")
    table = new_table("!implementation", *columns, title=title, box=box.SIMPLE_HEAD, padding=0)  # 80 columns
    for row in rows:
        numbers = (f"{value:.1f}" for value in (row.min_ms, row.median_ms, row.p99_ms, row.tokens_per_s))
        ratios = (f"{o.min_ms / row.min_ms:.2f}, {o.median_ms / row.median_ms:.2f}" for o in (alone, peer))
        table.add_row(row.impl, str(row.ranks), *numbers, *ratios)
    return table
