"""`ferrule doctor --fix` and `--undo`: show, ask, do, look again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from ferrule.errors import LinkError
from ferrule.files import locked
from ferrule.links import Finding, Inventory, Probe
from ferrule.links.doctor import diagnose
from ferrule.links.doctor.fix import Entry, Fix, Journal, Target, apply, as_text, plan_fixes, undo

_LOCK_SECONDS = 5.0
_SETTLE_SECONDS = 5.0
_ROUNDS = 3
"""A module that is loaded brings interfaces, which may need an address, and then another MTU."""


def fix_all(console: Console, target: Target, *, yes: bool) -> tuple[Inventory, tuple[Finding, ...]]:
    """Offer each fix that this machine needs. Returns what a look afterwards finds.

    Raises `LinkError` where a step fails, and without root.
    """
    inventory, findings = _look()
    offered: set[tuple[str, str]] = set()
    for _ in range(_ROUNDS):
        fixes = [one for one in plan_fixes(inventory, findings) if (one.finding, one.subject) not in offered]
        if not fixes:
            break
        _need_root(console, fixes)
        for one in fixes:
            offered.add((one.finding, one.subject))
            _show(console, one)
            if yes or typer.confirm("Do it?", default=False):
                _apply(console, target, one, yes=yes)
        inventory, findings = _look()
    if not offered:
        console.print("Nothing that this can fix. What `ferrule doctor` tells is for hands.", highlight=False)
    return inventory, findings


def undo_all(console: Console, target: Target, *, yes: bool) -> None:
    """Offer to take back what was done, the last first. Raises `LinkError` where that fails, and without root."""
    if not target.state.exists():
        console.print("Nothing was fixed here, so there is nothing to undo.", highlight=False)
        return
    _need_root(console, [])
    with _alone(target):
        entries = Journal(target.state).entries()
        if not entries:
            console.print("Everything is undone already.", highlight=False)
        for entry in reversed(entries):
            state = "" if entry.complete else " (not finished)"
            console.print(Text(f"{entry.when}{state}: {entry.fix.title}", style="bold"))
            for step in reversed(entry.fix.steps[: entry.begun]):
                if step.undo is not None:
                    _print_indented(console, as_text(step.undo))
            if yes or typer.confirm("Undo it?", default=False):
                _undo(console, target, entry)


def _look() -> tuple[Inventory, tuple[Finding, ...]]:
    inventory = Probe.live().inventory()
    return inventory, diagnose([inventory])


def _need_root(console: Console, fixes: list[Fix]) -> None:
    """Says so first, and then what would be done."""
    if _is_root():
        return
    if fixes:
        console.print("This needs root. With it, this would be done:", style="yellow", highlight=False)
    for one in fixes:
        _show(console, one)
    raise LinkError(
        "this changes settings of the system, so it needs root, and nothing was done; run it again with sudo: "
        'sudo "$(command -v ferrule)" doctor --fix'
    )


def _is_root() -> bool:
    return os.geteuid() == 0


def _show(console: Console, one: Fix) -> None:
    console.print(Text(f"\n{one.title}", style="bold") + Text(f"  {one.finding}, {one.subject}", style="dim"))
    for step in one.steps:
        if step.do is not None:
            _print_indented(console, as_text(step.do))
    if one.later:
        console.print(f"  It shows {one.later}.", highlight=False)


def _print_indented(console: Console, text: str) -> None:
    for line in text.splitlines():
        console.print(Text(f"    {line}"), soft_wrap=True)


def _apply(console: Console, target: Target, one: Fix, *, yes: bool) -> None:
    journal = Journal(target.state)
    with _alone(target):
        try:
            apply(one, target, journal, lambda text: _print_indented(console, text.partition("\n")[0]))
        except LinkError as error:
            _failed(console, target, journal, error, yes=yes)
            raise
    if one.later:
        console.print(Text("done; ", style="green") + Text(f"it shows {one.later}"))
    elif _is_gone(one):
        console.print(Text("done, and the finding is gone", style="green"))
    else:
        console.print(
            Text("done, but the finding is still there; `ferrule doctor --undo` takes it back", style="yellow")
        )


def _failed(console: Console, target: Target, journal: Journal, error: LinkError, *, yes: bool) -> None:
    console.print(Text("failed: ", style="bold red") + Text(str(error)), soft_wrap=True)
    begun = [entry for entry in journal.entries() if not entry.complete]
    if begun and not yes and typer.confirm("Undo what was done of it?", default=True):
        _undo(console, target, begun[-1])
    elif begun:
        console.print("`sudo ferrule doctor --undo` takes back what was done of it.", highlight=False)


def _undo(console: Console, target: Target, entry: Entry) -> None:
    undo(entry, target, Journal(target.state), lambda text: _print_indented(console, text))
    console.print(Text("undone", style="green"))


def _is_gone(one: Fix) -> bool:
    """Look again, for a few seconds: interfaces need a moment to come up."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        if not any((found.id, found.subject) == (one.finding, one.subject) for found in _look()[1]):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)


@contextmanager
def _alone(target: Target) -> Iterator[None]:
    """One `--fix` or `--undo` at a time."""
    try:
        with locked(target.at("/run/ferrule-doctor.lock"), _LOCK_SECONDS):
            yield
    except (TimeoutError, PermissionError) as error:
        raise LinkError(f"cannot be sure to be alone: {error}") from error
