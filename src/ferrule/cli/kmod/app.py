"""``ferrule driver``: the kernel module that makes a USB4 cable an RDMA device."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ferrule import kmod as driver
from ferrule.cli.flags import AsJson
from ferrule.cli.kmod.text import checks_text, needs_text, state_json, state_text
from ferrule.cli.output import print_json
from ferrule.config import environment, verbs_settings
from ferrule.errors import DriverError, LinkError
from ferrule.fabric.transports.verbs.ports import find_ports
from ferrule.kmod import LIVE, State
from ferrule.links import Probe

INSTALL_EXAMPLES = (
    "Examples:\n\nferrule driver install --dry-run\n\n"
    'sudo "$(command -v ferrule)" driver install\n\nsudo "$(command -v ferrule)" driver install --packages --yes'
)

app = typer.Typer(no_args_is_help=True, help="The kernel module that makes a USB4 cable an RDMA device.")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]


@app.command(epilog="Examples:\n\nferrule driver status\n\nferrule driver status --json | jq .loaded")
def status(as_json: AsJson = False) -> None:
    """Say what there is of the driver, what this machine has for it, and what is missing.

    Changes nothing and needs no root. Exit code: 0 the driver that comes with this Ferrule is loaded, 1 it is not.
    """
    state, source = _look(), driver.read_source()
    if as_json:
        print_json(state_json(state, source.version))
    else:
        _print(Console(), state_text(state, source.version))
    raise typer.Exit(0 if state.loaded == source.version else 1)


@app.command(epilog=INSTALL_EXAMPLES)
def install(
    yes: Yes = False,
    dry_run: DryRun = False,
    packages: Annotated[
        bool, typer.Option("--packages", help="Install the distribution's packages that are missing, first.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also on a machine without a USB4 controller.")] = False,
) -> None:
    """Build the module for this kernel and those to come (DKMS), load it, now and at every start.

    First it looks for all that is missing, and does nothing if it cannot end well. What fails later, or is
    interrupted, is taken back. It needs root, but not to look, nor for --dry-run.
    """
    console, source, state = Console(), driver.read_source(), _look()
    lacking = driver.needs(state)
    wanted = driver.packages_of(lacking)
    if packages and wanted and not dry_run:
        _packages(console, state, wanted, yes=yes)
        state = _look()
        lacking = driver.needs(state)
    stopped = [one for one in lacking if one.stops and not (force and one.forced)]
    _print(console, needs_text(state, lacking))
    if state.record is not None and state.record.phase != "installed":
        console.print(f"What was begun and not finished is taken back first ({state.record.version}).", highlight=False)
    steps = driver.plan_install(state, source)
    if not steps and not stopped:
        console.print(f"{driver.MODULE} {source.version} is installed and loaded.", highlight=False)
        raise typer.Exit
    _show(console, f"To install {driver.MODULE} {source.version}:", [driver.describe(step) for step in steps])
    if stopped:
        count = "one thing is" if len(stopped) == 1 else f"{len(stopped)} things are"
        raise DriverError(f"{count} missing (above), so nothing was done")
    _agree("install", f"{' --packages' * packages}{' --force' * force}", yes=yes, dry_run=dry_run)
    with _interruptible():
        driver.install(LIVE, source, state.inventory, _teller(console))
    console.print(Text("installed, loaded, and checked. ", style="green") + Text("`ferrule driver status` says more."))


@app.command(epilog='Examples:\n\nsudo "$(command -v ferrule)" driver uninstall')
def uninstall(yes: Yes = False, dry_run: DryRun = False) -> None:
    """Unload the driver, and take away all that `install` brought. What you changed in its options file stays.

    May be called again after a failure, and where nothing is installed.
    """
    console, state = Console(), _look()
    if state.record is None:
        if state.package:
            raise DriverError(
                f"the driver was installed by the package {driver.PACKAGE}-dkms; take that away: "
                f"sudo apt-get purge {driver.PACKAGE}-dkms"
            )
        if state.built:
            names = ", ".join(dict.fromkeys(one.version for one in state.built))
            raise DriverError(
                f"DKMS has the driver ({names}), but `ferrule driver install` did not put it there; if it is to go: "
                f"sudo dkms remove {driver.PACKAGE}/{state.built[0].version} --all"
            )
        console.print("Nothing of the driver is installed.", highlight=False)
        raise typer.Exit
    steps = driver.plan_removal(state, state.record.version)
    _show(console, f"To take {driver.MODULE} {state.record.version} away:", [driver.describe(step) for step in steps])
    _agree("uninstall", "", yes=yes, dry_run=dry_run)
    with _interruptible():
        driver.uninstall(LIVE, state.inventory, _teller(console))
    console.print("gone")


@app.command(epilog="Examples:\n\nferrule driver check && FERRULE_TRANSPORT=verbs ferrule launch -n 2 train.py")
def check(
    as_json: AsJson = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="Only this RDMA device will do.")] = "",
) -> None:
    """Fail, and say why, if programs could not use RDMA here and would take TCP in its place.

    Looks as a rank does with FERRULE_TRANSPORT=verbs: a port with a link and an IPv4 address, a queue pair made and
    memory registered on it, the limit of locked memory. It sends nothing: `ferrule links probe` measures the cable.
    Exit code: 0 RDMA can be used, 11 it cannot.
    """
    checks = driver.check(_look(), find_ports(verbs_settings(environment()), software=True), device)
    good = driver.usable(checks)
    if as_json:
        print_json({"usable": good, "checks": checks})
    else:
        _print(Console(), checks_text(checks))
    if not good:
        raise DriverError("RDMA cannot be used here; programs would take TCP, or fail")


@app.command(epilog="Examples:\n\nferrule driver package --output dist")
def package(output: Annotated[Path, typer.Option(metavar="DIRECTORY", help="Where to write it.")] = Path()) -> None:
    """Write a .deb package of the driver, for machines that have no Ferrule. Needs no root."""
    typer.echo(driver.build_deb(driver.read_source(), output))


def _look() -> State:
    return driver.look(LIVE, Probe.live().inventory())


def _print(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _show(console: Console, title: str, steps: Iterable[str]) -> None:
    _print(console, [Text(title, style="bold"), *(Text(f"    {step}") for step in steps)])


def _agree(verb: str, flags: str, *, yes: bool, dry_run: bool = False, question: str = "Do it?") -> None:
    """Before anything is done: ends here with ``dry_run``, without root, or where the answer is no."""
    if dry_run:
        raise typer.Exit
    if os.geteuid() != 0:
        raise DriverError(
            f'this needs root, and nothing was done; run it again so: sudo "$(command -v ferrule)" driver {verb}{flags}'
        )
    if not yes:
        typer.confirm(question, abort=True)


def _packages(console: Console, state: State, names: tuple[str, ...], *, yes: bool) -> None:
    """They stay, whatever becomes of the rest: other programs may want them by then."""
    command = driver.install_command(state, names)
    if not command:
        raise DriverError(
            f"it is not known how {state.inventory.machine.os_name} installs packages; do it by hand, then go on"
        )
    _show(console, "First, the distribution's packages:", [shlex.join(command)])
    _agree("install", " --packages", yes=yes, question="Install them?")
    with _interruptible():
        try:
            code, told = LIVE.run(command)
        except LinkError as error:
            raise DriverError(str(error)) from error
    if code != 0:
        last = "\n  ".join(told.splitlines()[-6:])
        raise DriverError(f"`{shlex.join(command)}` failed:\n  {last}")


def _teller(console: Console) -> driver.perform.Tell:
    return lambda text: console.print(Text(f"    {text}"), soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Being ended, or losing the terminal, is as Ctrl-C: what was begun is taken back."""
    old = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
