"""``ferrule lab``: emulated machines and cables."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.lab_tables import profile_tables, profiles_json
from ferrule.lab import shipped

PROFILES_EXAMPLES = "Examples:\n\nferrule lab profiles\n\nferrule lab profiles --json"

app = typer.Typer(no_args_is_help=True, help="Rehearse on emulated machines and cables, all on this one.")

AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.callback()
def _lab() -> None:
    """Rehearse on emulated machines and cables, all on this one."""


@app.command(epilog=PROFILES_EXAMPLES)
def profiles(as_json: AsJson = False) -> None:
    """List the labs, machines and cables that are known, each figure with its source in --json."""
    known = shipped()
    if as_json:
        typer.echo(json.dumps(profiles_json(known), indent=2))
        return
    console = Console()
    for table in profile_tables(known):
        console.print(table)
        console.print()
