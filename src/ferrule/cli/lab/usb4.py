"""``ferrule lab usb4``: what emulated USB4 controllers and cables did."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ferrule.lab.usb4.trace import Traced, describe, read

TRACE_EXAMPLES = (
    "Examples:\n\nferrule lab usb4 trace cable.pcapng\n\nferrule lab usb4 trace cable.pcapng --control\n\n"
    "ferrule lab usb4 trace cable.pcapng --only cable0 --most 100"
)

app = typer.Typer(no_args_is_help=True, help="Look at what emulated USB4 controllers and cables did.")


@app.callback()
def _usb4() -> None:
    """Look at what emulated USB4 controllers and cables did (docs/virtual-usb4.md)."""


@app.command(epilog=TRACE_EXAMPLES)
def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pcapng file of a USB4 lab.")],
    control: Annotated[bool, typer.Option("--control", help="Only control packets, no frames of paths.")] = False,
    only: Annotated[
        str, typer.Option(metavar="WORDS", help="Only what such an interface saw: cable0, strix-1 router...")
    ] = "",
    most: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many packets.")] = None,
) -> None:
    """Print what crossed the cables of a lab, and what hosts and their own routers said to each other."""
    chosen = (each for each in read(file) if (each.control or not control) and only in each.interface)
    for each in itertools.islice(chosen, most):
        typer.echo(_line(each))


def _line(traced: Traced) -> str:
    seconds, nanoseconds = divmod(traced.time, 1_000_000_000)
    time = datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")
    return f"{time}.{nanoseconds // 1000:06d}  {traced.interface:<22}  {describe(traced)}"
