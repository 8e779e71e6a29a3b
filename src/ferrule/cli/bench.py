"""`ferrule bench`: measure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ferrule.bench import DEFAULT_SIZES, FabricBench, bench_fabric
from ferrule.cli import bench_decode
from ferrule.config import check_transport
from ferrule.units import format_bytes, parse_bytes

app = typer.Typer(no_args_is_help=True, help="Measure what this machine can do, beside other libraries.")


@app.callback()
def _bench() -> None:
    """Measure what this machine can do, beside other libraries."""


@app.command()
def fabric(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions: about ten seconds.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
    ranks: Annotated[int, typer.Option(min=2, help="How many processes take part.")] = 2,
    transports: Annotated[str, typer.Option(help="Which transports of Ferrule to measure.")] = "shm,tcp",
    sizes: Annotated[str, typer.Option(help="Message sizes, such as 64,8KiB,2MiB.")] = ",".join(
        format_bytes(size).replace(" ", "") for size in DEFAULT_SIZES
    ),
) -> None:
    """Time all_reduce between processes of this machine, beside Gloo (torch.distributed).

    Examples:

      ferrule bench fabric --quick

      ferrule bench fabric --sizes 8KiB,1MiB --transports tcp --json rows.json
    """
    chosen = [check_transport(name.strip(), "--transports") for name in transports.split(",")]
    console = Console()
    with console.status("Measuring all_reduce (nothing else should run now)"):
        result = bench_fabric(
            ranks=ranks,
            transports=chosen,
            sizes=[parse_bytes(size) for size in sizes.split(",")],
            quick=quick,
        )
    console.print(_table(result, chosen, ranks))
    for note in result.notes:
        console.print(f"note: {note}")
    if json_file is not None:
        json_file.write_text(json.dumps(list(result.rows), indent=1) + "\n")
        console.print(f"wrote {json_file}")


app.command(epilog=bench_decode.EXAMPLES)(bench_decode.decode)


def _table(result: FabricBench, transports: Sequence[str], ranks: int) -> Table:
    """A line per size and implementation."""
    table = Table(title=f"all_reduce of float32, {ranks} ranks, µs per call")
    table.caption = (
        "× Gloo: how many times faster, by minimum and by median. Limit: memcpy, or a raw TCP socket one way"
    )
    for heading in ("size", "impl", "min", "median", "p99", "× Gloo", "limit"):
        table.add_column(heading, justify="left" if heading in ("size", "impl") else "right", no_wrap=True)
    implementations = [("ferrule", transport) for transport in transports] + [("gloo", "tcp")]
    for size in sorted({row["bytes"] for row in result.rows}):
        gloo = result.find("gloo", "tcp", size)
        for impl, transport in implementations:
            row = result.find(impl, transport, size)
            if row is None:
                continue
            ratios = ""
            if gloo is not None and impl != "gloo":
                ratios = f"{gloo['min_us'] / row['min_us']:.1f}, {gloo['median_us'] / row['median_us']:.1f}"
            limit = result.raw.get(size, {}).get("memcpy" if transport == "shm" else "tcp")
            table.add_row(
                format_bytes(size),
                f"{impl} {transport}",
                *(f"{row[key]:.1f}" for key in ("min_us", "median_us", "p99_us")),
                ratios,
                "" if limit is None or impl == "gloo" else f"{limit:.1f}",
            )
        table.add_section()
    return table
