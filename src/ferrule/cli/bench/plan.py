"""`ferrule bench plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import msgspec
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
        bool, typer.Option("--lab", help="Also against the built-in engine on emulated hosts (as root, forty minutes).")
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
    """``seen``: by a fit to all rows; the error is of one that has seen no row of the same family."""
    columns = ("measurement", "hosts, split", ">measured", ">seen", ">unseen", ">error", ">expected")
    title = "What others measured, in tokens per second, and what is predicted"
    table = new_table(*columns, title=title, box=box.HEAVY_HEAD)
    before = None
    for row in bench.rows:
        name = "" if row.series is before else row.series.name
        before = row.series
        numbers = [f"{row.measured:.4g}", f"{row.predicted:.4g}", f"{row.without_family:.4g}"]
        if row.counted:
            numbers += [f"{row.error:+.0%}", f"{row.low:.3g} to {row.high:.3g}{'' if row.held else ' !'}"]
        else:
            numbers += ["", "not counted"]
        table.add_row(name, row.measurement.what, *numbers, style="" if row.counted else "dim")
    table.caption = "unseen: by a fit to rows of other families alone, as are error and expected"
    console.print(table)
    for row in bench.rows:
        if not row.counted:
            console.print(f"not counted: {row.series.name}: {row.measurement.doubtful}", highlight=False)
    order = "every order is right" if not bench.disagreements else "wrong order: " + "; ".join(bench.disagreements)
    console.print(
        f"{len(bench.counted)} figures: mean absolute error {bench.family_error:.1%} of families not seen (at most "
        f"{abs(bench.worst.error):.0%}), {bench.machine_error:.1%} of machines not seen, {bench.fitted_error:.1%} of "
        f"what was fitted; {bench.covered:.0%} within what was expected; {order}",
        highlight=False,
    )
    worst = max(bench.checked, key=lambda row: abs(row.error))
    console.print(
        f"{len(bench.checked)} more that were compared when all had been chosen: mean absolute error "
        f"{bench.checked_error:.1%}, {bench.checked_covered:.0%} within what was expected; worst {worst.error:+.0%}, "
        f"{worst.series.name}: {worst.measurement.what}",
        highlight=False,
    )


def _show_planned(console: Console, rows: list[PlannedRow]) -> None:
    columns = ("!model", "!split", "!cables", ">!ms", ">!pred.", ">!error", ">!MiB", ">!pred.")
    title = "The built-in engine on emulated hosts: ms per token of one stream, MiB on the fullest rank, and predicted"
    table = new_table(*columns, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # all of it in 80 columns
    for row in rows:
        rate = "" if row.cables.rate is None else f" {row.cables.rate / 1e6:g} Mb/s"
        table.add_row(
            row.model.removesuffix("-random"),
            row.split,
            "calibrates" if row.calibrates else "" if row.hosts == 1 else f"{row.cables.delay * 1e6:g} µs{rate}",
            f"{row.measured_ms:.1f}",
            f"{row.predicted_ms:.1f}",
            "" if row.calibrates else f"{row.error:+.0%}",
            f"{row.memory_mib:.0f}",
            f"{row.predicted_memory_mib:.0f}",
        )
    kept = [row.together for row in rows]
    table.caption = (
        f"While all cores compute, each keeps {min(kept):.2f} to {max(kept):.2f} of its speed (measured beside)"
    )
    console.print(table)
    errors = [abs(row.error) for row in rows if not row.calibrates]
    held_out = [abs(row.held_out_error) for row in rows if not row.calibrates and row.held_out_error is not None]
    if held_out:
        console.print(
            f"calibrated by other models alone: mean absolute error {sum(held_out) / len(held_out):.1%}, "
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
            "family": row.series.family,
            "url": row.series.url,
            **msgspec.structs.asdict(row.measurement),
            "measured": row.measured,
            "predicted": round(row.predicted, 3),
            "without_family": round(row.without_family, 3),
            "without_machine": round(row.without_machine, 3),
            "low": round(row.low, 3),
            "high": round(row.high, 3),
        }
        for row in published.rows
    ]
    checked = [
        {
            "series": row.series.name,
            "url": row.series.url,
            **msgspec.structs.asdict(row.measurement),
            "measured": row.measurement.tokens_per_s,
            "predicted": round(row.predicted, 3),
            "low": round(row.between.low, 3),
            "high": round(row.between.high, 3),
        }
        for row in published.checked
    ]
    fitted = [
        {"runtime": runtime, "maker": maker, "field": field, "value": float(f"{value:.3g}")}
        for (runtime, maker, field), value in published.fitted.items()
    ]
    found = {
        "published": first,
        "checked": checked,
        "fitted": fitted,
        "spreads": published.spreads,
        "lab": [asdict(row) for row in rows],
    }
    return json.dumps(found, indent=1) + "\n"
