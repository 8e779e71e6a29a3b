"""``ferrule config``: the settings and where they come from."""

from __future__ import annotations

import typer
from rich import box
from rich.console import Console

from ferrule.cli.flags import AsJson
from ferrule.cli.output import new_table, print_json
from ferrule.config import config_path, current_values

app = typer.Typer(no_args_is_help=True, help="Show the settings, and where each comes from.")


@app.command(epilog="Examples:\n\nferrule config show\n\nferrule config show --json")
def show(as_json: AsJson = False) -> None:
    """Print each setting's value and its source: default, file or environment. Flags of a command are above all."""
    values = current_values()
    if as_json:
        listed = {
            each.setting.key: {"value": each.shown, "source": each.source, "variable": each.setting.variable}
            for each in values
        }
        print_json({"path": str(config_path()), "settings": listed})
        return
    console = Console()
    table = new_table("!setting", "value", "!from", "!variable", box=box.SIMPLE_HEAD, padding=0)
    for each in values:
        style = "dim" if each.source == "default" else ""
        table.add_row(each.setting.key, each.shown, each.source, each.setting.variable, style=style)
    console.print(table)
    there = "" if config_path().exists() else " (there is none)"
    console.print(f"file: {config_path()}{there}", markup=False, highlight=False, soft_wrap=True)


@app.command(epilog="Examples:\n\nferrule config path")
def path() -> None:
    """Print where the settings file is, or would be."""
    typer.echo(str(config_path()))
