"""``ferrule doctor``: what is wrong with the cables, and the cure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperCommand

from ferrule.cli.doctor.fix import fix_all, undo_all
from ferrule.cli.doctor.text import EXIT_CODES, show_report
from ferrule.cli.flags import RemoteCommand
from ferrule.cli.output import print_error, print_json
from ferrule.errors import ConfigError, LinkError
from ferrule.links import Inventory, Probe, worst
from ferrule.links.doctor import UnreachedJson, diagnose, diagnosis_json
from ferrule.links.doctor.fix import Target
from ferrule.links.remote import probe_remote
from ferrule.units import parse_seconds

EXAMPLES = (
    "Examples:\n\nferrule doctor\n\nferrule doctor --host local --host strix-b\n\n"
    "ferrule doctor --tree strix-a.json --json\n\nsudo ferrule doctor --fix\n\nsudo ferrule doctor --undo"
)
LOCAL = "local"
USAGE = 3
"""Exit code for wrong flags; 2 is for findings that are errors."""


class Command(TyperCommand):
    """Wrong flags do not look like an error that was found."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Some versions of typer bring a click of their own, so the class cannot be named.
            if hasattr(error, "exit_code") and hasattr(error, "format_message"):
                vars(error)["exit_code"] = USAGE
            raise


app = typer.Typer()


@app.command(epilog=EXAMPLES, cls=Command)
def doctor(
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Look at that host, over ssh; several are compared. `local` is the one you are on."
        ),
    ] = None,
    tree: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Look at a recorded machine; may be given several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Cure what can be cured by commands: show, ask, do, check.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take back what --fix did.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix and --undo: do not ask.")] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long a host may take.")] = "30s",
    remote_command: RemoteCommand = "ferrule",
) -> None:
    """Look at the cables, interfaces and RDMA devices; say what is wrong, what it costs, and the cure.

    Without --fix and --undo it changes nothing, sends nothing but over ssh, and needs no root. Exit code: 0 all is well
    or notes only, 1 warnings, 2 errors; 3 wrong flags, 8 a host or a record could not be read, or a fix failed.
    """
    if fix or undo or yes:
        _change(host or [], tree or [], fix=fix, undo=undo, yes=yes, as_json=as_json)
    try:
        seconds = parse_seconds(timeout)
    except ConfigError as wrong:
        _wrong(f"--timeout: {wrong}")
    inventories, unreached = _read(host or [], tree or [], remote_command, seconds)
    findings = diagnose(inventories)
    if as_json:
        lost = [UnreachedJson(name, str(error)) for name, error in unreached]
        print_json(diagnosis_json(inventories, findings, lost))
    elif inventories:
        show_report(Console(), inventories, findings)
    for _, error in unreached:
        print_error(str(error))
    raise typer.Exit(LinkError.exit_code if unreached else EXIT_CODES[worst(findings)])


def _wrong(what: str) -> NoReturn:
    print_error(what)
    raise typer.Exit(USAGE)


def _change(hosts: list[str], trees: list[Path], *, fix: bool, undo: bool, yes: bool, as_json: bool) -> NoReturn:
    """Only ever this machine, and only one way at a time."""
    console = Console()
    if fix == undo or hosts or trees or as_json:
        _wrong("--fix and --undo change this machine: give one of them, with --yes or nothing else")
    if undo:
        undo_all(console, Target(), yes=yes)
        raise typer.Exit
    inventory, findings = fix_all(console, Target(), yes=yes)
    console.print()
    show_report(console, [inventory], findings)
    raise typer.Exit(EXIT_CODES[worst(findings)])


def _read(
    hosts: list[str], trees: list[Path], command: str, timeout: float
) -> tuple[list[Inventory], list[tuple[str, LinkError]]]:
    """All at once; those that cannot be reached do not keep the others from being looked at."""
    recorded = [Probe.recorded(path).inventory() for path in trees]
    wanted = list(dict.fromkeys(hosts)) or ([] if trees else [LOCAL])

    def ask(name: str) -> Inventory | LinkError:
        try:
            return (Probe.live() if name == LOCAL else probe_remote(name, command=command, timeout=timeout)).inventory()
        except LinkError as error:
            return error

    with ThreadPoolExecutor(max_workers=8) as pool:
        asked = list(zip(wanted, pool.map(ask, wanted), strict=True))
    found = [one for _, one in asked if isinstance(one, Inventory)]
    return recorded + found, [(name, one) for name, one in asked if isinstance(one, LinkError)]
