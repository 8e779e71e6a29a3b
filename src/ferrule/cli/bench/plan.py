"""`ferrule bench plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console

from ferrule.cli.extras import needs
from ferrule.cli.flags import RowsFile
from ferrule.cli.output import new_table, write_file

if TYPE_CHECKING:
    from ferrule.bench.planned import PlannedRow
    from ferrule.bench.published import PublishedBench

EXAMPLES = "Examples:\n\nferrule bench plan\n\nferrule bench plan --lab\n\nferrule bench plan --lab --json rows.json"


def plan(
    lab: Annotated[
        bool, typer.Option("--lab", help="Also against the built-in engine on emulated hosts (as root, half an hour).")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --lab: a tiny model; shows that it runs, no more.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="With --lab: how often to measure [default: 15, 1 with --quick].")
    ] = None,
    json_file: RowsFile = None,
) -> None:
    """Compare the planner's predictions with measurements: published ones, and of the built-in engine."""
    from ferrule.bench.published import bench_published

    console = Console()
    with console.status("Predicting what others published"):
        published = bench_published()
    _show_published(console, published)
    rows: list[PlannedRow] = []
    if lab:
        with needs("bench", "bench plan --lab"):
            from ferrule.bench.planned import ROUNDS, bench_planned, choices
        with console.status("Measuring (nothing else should run now)") as status:
            rows = bench_planned(quick=quick, rounds=rounds or (1 if quick else ROUNDS), say=status.update)
        _show_planned(console, rows)
        worst = max(choices(rows), key=lambda choice: choice.loss)
        console.print(
            f"the planner's first choice is at most {worst.loss:.0%} slower than the best that was measured"
            + (f": {worst.model} on {worst.hosts} hosts, {worst.cables.delay * 1e6:g} µs" if worst.loss else ""),
            highlight=False,
        )
    write_file(json_file, _json(published, rows))


def _show_published(console: Console, bench: PublishedBench) -> None:
    columns = ("measurement", ">hosts", "split", ">streams", ">measured", ">predicted", ">error")
    title = "What others measured, in tokens per second, and what is predicted"
    table = new_table(*columns, title=title, box=box.HEAVY_HEAD)
    before = None
    for row in bench.rows:
        name = "" if row.series is before else row.series.name
        before = row.series
        numbers = (f"{row.measured:.1f}", f"{row.predicted:.1f}", f"{row.error:+.1%}")
        table.add_row(
            name, str(row.measurement.hosts), row.measurement.split, str(row.measurement.concurrency), *numbers
        )
    fitted = ", ".join(f"{machine} {seconds * 1e6:.1f} µs" for machine, seconds in bench.launch_seconds.items())
    table.caption = f"Fitted, one number per kind of machine, seconds per operation: {fitted}"
    console.print(table)
    order = "every order is right" if not bench.disagreements else "wrong order: " + "; ".join(bench.disagreements)
    console.print(f"mean absolute error {bench.mean_error:.1%}; {order}", highlight=False)


def _show_planned(console: Console, rows: list[PlannedRow]) -> None:
    columns = ("!model", ">!tp", ">!pp", "!cables", ">!ms", ">!predicted", ">!error", ">!MiB", ">!predicted")
    title = "The built-in engine on emulated hosts: ms per token of one stream, MiB on the fullest rank"
    table = new_table(*columns, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # all of it in 80 columns
    for row in rows:
        rate = "" if row.cables.rate is None else f", {row.cables.rate / 1e6:g} Mb/s"
        calibrates = row.tensor == row.pipeline == 1
        table.add_row(
            row.model.removesuffix("-random"),
            str(row.tensor),
            str(row.pipeline),
            "(calibrates)" if calibrates else f"{row.cables.delay * 1e6:g} µs{rate}",
            f"{row.measured_ms:.1f}",
            f"{row.predicted_ms:.1f}",
            "" if calibrates else f"{row.error:+.0%}",
            f"{row.memory_mib:.0f}",
            f"{row.predicted_memory_mib:.0f}",
        )
    kept = [row.together for row in rows]
    table.caption = (
        f"While all cores compute, each keeps {min(kept):.2f} to {max(kept):.2f} of its speed (measured beside)"
    )
    console.print(table)
    errors = [abs(row.error) for row in rows if row.tensor * row.pipeline > 1]
    held_out = [abs(row.held_out_error) for row in rows if row.hosts > 1 and row.held_out_error is not None]
    if held_out:
        console.print(
            f"calibrated by the other model alone: mean absolute error {sum(held_out) / len(held_out):.1%}, "
            f"worst {max(held_out):.1%}",
            highlight=False,
        )
    console.print(
        f"{len(errors)} combinations: mean absolute error {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}; "
        f"memory off by at most {max(abs(row.memory_error_mib) for row in rows):.0f} MiB",
        highlight=False,
    )


def _json(published: PublishedBench, rows: list[PlannedRow]) -> str:
    first = [
        {
            "series": row.series.name,
            "url": row.series.url,
            "hosts": row.measurement.hosts,
            "split": row.measurement.split,
            "concurrency": row.measurement.concurrency,
            "measured": row.measured,
            "predicted": round(row.predicted, 3),
        }
        for row in published.rows
    ]
    return json.dumps({"published": first, "lab": [asdict(row) for row in rows]}, indent=1) + "\n"
