"""`ferrule bench fabric`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ferrule.bench.fabric import Row, Sweep, bench_fabric
from ferrule.bench.fabric.bars import Bar, measure_bars
from ferrule.bench.fabric.in_lab import SHAPES, bench_shape
from ferrule.bench.fabric.operations import OPERATIONS
from ferrule.bench.fabric.rows import find_row, to_csv, to_json
from ferrule.bench.fabric.sweep import DEFAULT_SIZES, IMPLS
from ferrule.cli.extras import needs
from ferrule.cli.flags import RowsFile
from ferrule.cli.output import check_folders, new_table, write_file
from ferrule.config import TRANSPORT_CHOICES
from ferrule.errors import ConfigError
from ferrule.fabric import DTYPE_BYTES
from ferrule.units import format_bytes, parse_bytes

SIZES = ",".join(format_bytes(size).replace(" ", "") for size in DEFAULT_SIZES)
EXAMPLES = (
    "Examples:\n\nferrule bench fabric --quick\n\n"
    "ferrule bench fabric --ops all --sizes 8KiB,1MiB --dtypes float32,bfloat16 --csv rows.csv --plot rows.png\n\n"
    "ferrule bench fabric --impls ferrule-native,openmpi --ranks 2,4,8 --transports tcp\n\n"
    "ferrule bench fabric --lab chain --ranks 5 --transports tcp\n\n"
    "ferrule bench fabric --bars"
)


def fabric(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions: about half a minute.")] = False,
    ops: Annotated[str, typer.Option(help=f"Operations, or all: {', '.join(OPERATIONS)}.")] = "all_reduce",
    sizes: Annotated[str, typer.Option(help="Bytes of the whole array on one rank, such as 64,8KiB,2MiB.")] = SIZES,
    dtypes: Annotated[str, typer.Option(help=f"Element types, or all: {', '.join(DTYPE_BYTES)}.")] = "float32",
    transports: Annotated[str, typer.Option(help=f"Of Ferrule: {', '.join(TRANSPORT_CHOICES)}.")] = "shm,tcp",
    ranks: Annotated[str, typer.Option(help="How many processes take part, such as 2 or 2,4.")] = "2",
    rails: Annotated[str, typer.Option(help="Sockets per interface of Ferrule's tcp, such as 1 or 1,2,4.")] = "1",
    impls: Annotated[str, typer.Option(help=f"Who takes part, of {', '.join(IMPLS)}; default: all installed.")] = "",
    lab: Annotated[
        str, typer.Option(help=f"On emulated hosts, one per rank, wired as {', '.join(SHAPES)}; needs root.")
    ] = "",
    busy: Annotated[bool, typer.Option("--busy", help="Keep another process busy on every core meanwhile.")] = False,
    bars: Annotated[
        bool, typer.Option("--bars", help="Measure what the project holds itself to, whatever else is asked for.")
    ] = False,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Also write the rows to this file.")] = None,
    json_file: RowsFile = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Also draw them, such as rows.png.")] = None,
) -> None:
    """Time collectives between processes of this machine, beside its limits, Gloo, Open MPI and MLX.

    All take turns on the same cores, so that whatever else the machine does hits them alike.
    """
    check_folders((csv_file, json_file, plot_file))
    if plot_file is not None:
        with needs("bench", "bench fabric --plot"):
            import matplotlib  # noqa: F401 - better now than after minutes of measuring
    console = Console()
    with console.status("Measuring (nothing else should run now)") as status:
        if bars:
            measured, result = measure_bars(quick=quick, say=status.update)
        else:
            sweep = Sweep(
                ops=list(OPERATIONS) if ops == "all" else _names(ops),
                sizes=[parse_bytes(size) for size in _names(sizes)],
                dtypes=list(DTYPE_BYTES) if dtypes == "all" else _names(dtypes),
                transports=_names(transports),
                ranks=[_number_of("--ranks", text) for text in _names(ranks)],
                rails=[_number_of("--rails", text) for text in _names(rails)],
                impls=_names(impls) or None,
                quick=quick,
                busy=busy,
            )
            result = bench_shape(sweep, lab, status.update) if lab else bench_fabric(sweep, status.update)
    for table in [_bars_table(measured)] if bars else _tables(result.rows):
        console.print(table)
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    write_file(csv_file, to_csv(result.rows))
    write_file(json_file, to_json(result.rows))
    if plot_file is not None:
        from ferrule.bench.fabric.plot import plot

        plot(result.rows, plot_file)
        typer.echo(f"wrote {plot_file}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _number_of(flag: str, text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"{flag}: {text!r} is no number; write for example 2 or 1,2,4")
    return int(text)


def _tables(rows: Sequence[Row]) -> list[Table]:
    """One per operation, dtype and number of ranks; a line per size and implementation."""
    tables: dict[str, Table] = {}
    last: dict[str, int] = {}
    title = ""
    for row in rows:
        if row["impl"] != "raw":  # the limits stand in the table of the operation that they took turns with
            what = row["op"] if row["op"] == "barrier" else f"{row['op']} of {row['dtype']}"
            title = f"{what}, {row['ranks']} ranks, µs per call"
        table = tables.get(title) or tables.setdefault(title, _new_table(title))
        if last.setdefault(title, row["bytes"]) != row["bytes"]:
            table.add_section()
            last[title] = row["bytes"]
        raw = find_row(rows, impl="raw", transport=row["transport"], bytes=row["bytes"])
        table.add_row(
            format_bytes(row["bytes"]),
            "memcpy" if row["op"] == "memcpy" else _who(row),
            *(_number(value) for value in (row["min_us"], row["median_us"], row["p99_us"])),
            _number(row["bus_gb_s"]) if row["bus_gb_s"] else "",
            "" if raw is None or raw is row else _number(row["median_us"] / raw["median_us"]),
        )
    return list(tables.values())


def _who(row: Row) -> str:
    return f"{row['impl']} {row['transport']}" + (f" ×{row['rails']}" if row["rails"] > 1 else "")


def _new_table(title: str) -> Table:
    columns = ("!size", "!implementation", ">!min", ">!median", ">!p99", ">!GB/s", ">!× limit")
    caption = "GB/s: bus bandwidth. × limit: median, over that of a bare socket or bare shared memory one way"
    return new_table(*columns, title=title, caption=caption, box=box.SIMPLE_HEAD)


def _bars_table(bars: Sequence[Bar]) -> Table:
    columns = ("what", ">!bar", ">!median", ">!min", "!met")  # the first breaks, so that the numbers keep their heads
    caption = "Met by the median ratio or difference of all turns; that of minima stands beside it"
    table = new_table(*columns, title="What Ferrule holds itself to", caption=caption, box=box.SIMPLE_HEAD)
    for bar in bars:
        limit = f"{'≥' if bar.at_least else '≤'} {bar.limit:g} {bar.unit}"
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: "—"}[bar.met]
        numbers = ("" if value is None else _number(value) for value in (bar.median, bar.minimum))
        table.add_row(bar.what, limit, *numbers, met)
    return table


def _number(value: float) -> str:
    """Three digits or so: 0.12, 12.3, 1234."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
