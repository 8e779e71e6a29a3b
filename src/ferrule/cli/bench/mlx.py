"""`ferrule bench mlx`."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.flags import RowsFile
from ferrule.cli.output import check_folders, new_table, write_file
from ferrule.installation import lacking

EXAMPLES = "Examples:\n\nferrule bench mlx\n\nferrule bench mlx --lab --json rows.json"


def mlx(
    lab: Annotated[bool, typer.Option("--lab", help="Also between two emulated hosts; needs root.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few turns: shows that it runs, not how fast.")] = False,
    json_file: RowsFile = None,
) -> None:
    """Stock MLX and mlx-lm between two ranks, on Ferrule and on MLX's own ring, which take turns."""
    check_folders([json_file])
    if find_spec("mlx") is None:
        raise lacking("mlx", "ferrule bench mlx", "mlx")
    from ferrule.bench.mlx import bench_mlx

    console = Console()
    decode = find_spec("mlx_lm") is not None
    with console.status("Measuring (nothing else should run now)") as status:
        rows = bench_mlx(lab=lab, quick=quick, decode=decode, say=status.update)
    table = new_table("where", "what", ">!Ferrule", ">!MLX's ring", ">!quicker", ">!bar", "!met")
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:g} ×"
        met = {None: "", True: "yes", False: "no"}[row.met]
        times = (f"{each:,.0f} µs" for each in (row.ferrule_us, row.ring_us))
        table.add_row(row.where, row.what, *times, f"{row.ratio:.2f} ×", bar, met)
    console.print(table)
    if not decode:
        console.print("note: no tokens without mlx-lm: pip install mlx-lm", markup=False)
    write_file(json_file, json.dumps([asdict(row) for row in rows], indent=1) + "\n")
