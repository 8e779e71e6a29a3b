"""``ferrule lab``: emulated machines and cables."""

from __future__ import annotations

import os
import shutil
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.complete import lab_hosts
from ferrule.cli.flags import AsJson, LabName, LabProfile
from ferrule.cli.lab import demo as lab_demo
from ferrule.cli.lab import usb4 as lab_usb4
from ferrule.cli.lab import vm as lab_vm
from ferrule.cli.lab.tables import check_tables, lab_tables, profile_tables, profiles_json
from ferrule.cli.output import print_json
from ferrule.hardware import shipped
from ferrule.lab.netns import control
from ferrule.lab.netns.check import check as check_shaper
from ferrule.lab.netns.faults import KINDS
from ferrule.lab.netns.status import LabStatus
from ferrule.units import format_seconds

UP_EXAMPLES = "Examples:\n\nferrule lab up two-strix\n\nferrule lab up desk.toml\n\nferrule lab up two-strix --as other"
SHELL_EXAMPLES = (
    "Examples:\n\nferrule lab shell strix-1\n\nferrule lab shell strix-1 -- ping -c 3 strix-2\n\n"
    "ferrule lab shell strix-1 -- ferrule links show"
)
FAULT_EXAMPLES = (
    "Examples:\n\nferrule lab fault cable0 delay=300us loss=1%\n\nferrule lab fault cable0 cut --from strix-1\n\n"
    "ferrule lab fault cable0 unplug\n\nferrule lab fault cable0 clear"
)

app = typer.Typer(no_args_is_help=True, help="Rehearse on emulated machines and cables, all on this one.")

app.add_typer(lab_demo.app, name="demo")
app.add_typer(lab_vm.app, name="vm")
app.add_typer(lab_usb4.app, name="usb4")


@app.command(epilog="Examples:\n\nferrule lab profiles\n\nferrule lab profiles --json")
def profiles(as_json: AsJson = False) -> None:
    """List the labs, machines and cables that are known, each figure with its source in --json."""
    known = shipped()
    if as_json:
        print_json(profiles_json(known))
        return
    console = Console()
    for table in profile_tables(known):
        console.print(table)
        console.print()


def _show(console: Console, status: LabStatus) -> None:
    console.print(f"[bold]{status.name}[/bold]: {status.title}", highlight=False)
    for table in lab_tables(status):
        console.print(table, highlight=False)


InLab = Annotated[str | None, typer.Option("--lab", metavar="NAME", help="Of this lab; needed where several are up.")]


@app.command(epilog=UP_EXAMPLES)
def up(
    lab: LabProfile,
    name: LabName = None,
    seed: Annotated[int, typer.Option(help="Of what chance does to packets.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Start a lab: its hosts and cables stay until `ferrule lab down`.

    Needs Linux, and root or user namespaces. Nothing of this machine is changed.
    """
    status = control.up(lab, name=name, seed=seed)
    if as_json:
        print_json(status)
        return
    console = Console()
    _show(console, status)
    first, last = status.hosts[0].name, status.hosts[-1].name
    example = f"ping -c 3 {last}" if shutil.which("ping") else "ferrule links show"
    console.print(f"\nferrule lab shell {first} -- {example}", highlight=False)


@app.command(epilog="Examples:\n\nferrule lab down two-strix\n\nferrule lab down --all")
def down(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Labs to end.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="End all, and clear away what killed ones left.")] = False,
) -> None:
    """End labs, with every program in their hosts."""
    if not names and not everything:
        names = [control.choose(None)]
    ended = control.down(() if everything else names or ())
    typer.echo(f"ended {', '.join(ended)}" if ended else "no lab was up")


@app.command(epilog="Examples:\n\nferrule lab status\n\nferrule lab status --json")
def status(as_json: AsJson = False) -> None:
    """Show the labs that are up, their cables and what is wrong with them."""
    found, gone = control.labs()
    if as_json:
        print_json({"labs": found, "cleared": gone})
        return
    console = Console()
    for each in found:
        _show(console, each)
        console.print()
    if gone:
        console.print(f"cleared away what was left of {', '.join(gone)}", highlight=False)
    if not found:
        console.print("no lab is up; start one, for example: ferrule lab up two-strix", highlight=False)


@app.command(epilog=SHELL_EXAMPLES)
def shell(
    host: Annotated[
        str, typer.Argument(help="A host's name, as `ferrule lab status` shows it.", autocompletion=lab_hosts)
    ],
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND]", help="Instead of a shell.")] = None,
    lab: InLab = None,
) -> None:
    """Run a shell or a command in a host: it has the host's name, interfaces, addresses and ports, and your files."""
    entry = control.enter(control.choose(lab, host), host)
    argv = [*entry.prefix, *(command or [os.environ.get("SHELL", "/bin/sh")])]
    os.execvpe(argv[0], argv, os.environ | entry.env)


@app.command(epilog=FAULT_EXAMPLES + "\n\nFaults:\n\n" + "\n\n".join(f"{kind}: {what}" for kind, what in KINDS.items()))
def fault(
    cable: Annotated[str, typer.Argument(help="A cable's name, such as cable0.")],
    words: Annotated[list[str], typer.Argument(metavar="FAULT...", help="A fault, or numbers: delay=300us loss=1%.")],
    sender: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="HOST", help="Only for what this host sends, or its plug.", autocompletion=lab_hosts
        ),
    ] = None,
    lab: InLab = None,
) -> None:
    """Let something happen to a cable while it is in use."""
    now = control.fault(control.choose(lab, sender), cable, words, sender)
    typer.echo(f"{cable}: {'; '.join(now.faults) or 'well'}")


@app.command(epilog="Examples:\n\nferrule lab check\n\nferrule lab check --json")
def check(as_json: AsJson = False) -> None:
    """Measure how true emulated cables are on this machine: the shaper's own cost, delays, rates, faults.

    Takes about ten seconds, in which nothing else should run. Exits with 1 when something is not held: a delay within
    10 % or 5 µs, a rate within 5 %, a fault within 10 ms.
    """
    console = Console(stderr=as_json)
    with console.status("Measuring (nothing else should run now)") as shown:
        found = check_shaper(say=lambda line: shown.update(f"Measuring {line}"))
    if as_json:
        print_json(vars(found) | {"true": found.true})
    else:
        for table in check_tables(found):
            console.print(table, highlight=False)
            console.print()
        console.print(f"the smallest delay that it can hold here: {format_seconds(found.smallest)}", highlight=False)
    if not found.true:
        raise typer.Exit(1)
