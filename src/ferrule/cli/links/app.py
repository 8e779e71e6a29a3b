"""``ferrule links``: what cables there are."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ferrule.cli.links import probe as links_probe
from ferrule.cli.links.measured import matrix
from ferrule.cli.links.tables import overview
from ferrule.cli.links.watch import watch
from ferrule.cli.output import print_json
from ferrule.errors import ConfigError
from ferrule.links import Facts, Inventory, MeasuredLinks, MeasuredPair, Probe, write_record

SHOW_EXAMPLES = (
    "Examples:\n\nferrule links show\n\nferrule links show --json\n\nferrule links show --watch\n\n"
    "ferrule links show --tree strix-halo.json"
)
RECORD_EXAMPLES = "Examples:\n\nferrule links record\n\nferrule links record strix-a.json --together 'two strix boxes'"

app = typer.Typer(no_args_is_help=True, help="Find the cables of this machine, and save what it says about them.")

Tree = Annotated[
    Path | None, typer.Option("--tree", metavar="FILE", help="Of a recorded machine, instead of this one.")
]


@dataclass(frozen=True)
class Shown(Facts):
    """Output of `ferrule links show --json`: a machine without its sources, and pairs of hosts that were measured."""

    measured: tuple[MeasuredPair, ...] = ()

    @classmethod
    def of(cls, inventory: Inventory, measured: tuple[MeasuredPair, ...]) -> Shown:
        return cls(**{each.name: getattr(inventory, each.name) for each in fields(Facts)}, measured=measured)


@app.command(epilog=SHOW_EXAMPLES)
def show(
    tree: Tree = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that was found as JSON.")] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Bytes per second and errors of every interface instead, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the machine, its cables, interfaces, RDMA devices and PCIe links.

    Only reads; root is not needed.
    """
    if watching:
        if tree is not None or as_json:
            raise ConfigError("--watch is for this machine now, and for people: leave --tree and --json out")
        watch(Console())
        return
    inventory = (Probe.live() if tree is None else Probe.recorded(tree)).inventory()
    measured = MeasuredLinks().pairs() if tree is None else ()
    if as_json:
        print_json(Shown.of(inventory, measured))
        return
    console = Console()
    for part in overview(inventory):
        console.print(part, highlight=False)
        if isinstance(part, Table):
            console.print()
    if measured:
        console.print(matrix(measured), highlight=False)


@app.command(epilog=RECORD_EXAMPLES)
def record(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Such as here.json or here.json.gz; must not be there yet. `-` prints it."
        ),
    ] = None,
    together: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="The same words on several machines give the same pseudonyms: cables between them stay known.",
        ),
    ] = "",
    plain: Annotated[
        bool, typer.Option("--plain", help="Replace nothing: for yourself, as `ferrule doctor --host` does.")
    ] = False,
) -> None:
    """Save what this machine says about its cables, for a bug report or a test.

    Host names, MAC addresses, unique ids, public IP addresses and unknown boot parameters are replaced by pseudonyms
    first; look into the file before you send it.
    """
    path = file or Path("links.json.gz")
    saved = Probe.live().record(together=together, plain=plain)
    if str(path) == "-":
        typer.echo(msgspec.json.encode(saved))
        return
    write_record(saved, path)
    typer.echo(f"wrote {path}: {len(saved.files)} files, {len(saved.commands)} commands' output")
    for kind, number in saved.header.redacted.items():
        typer.echo(f"redacted: {kind}, {number} different")
    typer.echo(f"see what is in it: ferrule links show --tree {path}")


app.command(epilog=links_probe.EXAMPLES)(links_probe.probe)
app.command("probe-server", hidden=True)(links_probe.probe_server)
