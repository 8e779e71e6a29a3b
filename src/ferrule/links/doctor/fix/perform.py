"""Apply a fix step by step, and undo it in the opposite order. The journal is always a step ahead."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from msgspec.structs import replace

from ferrule.errors import LinkError
from ferrule.links.doctor.fix.actions import Action, Command, Fix, NewFile, RemoveFile, Require, as_text
from ferrule.links.doctor.fix.journal import Entry, Journal, advanced
from ferrule.links.doctor.fix.machine import Target

Tell = Callable[[str], None]


def apply(fix: Fix, target: Target, journal: Journal, tell: Tell) -> Entry:
    """Do all steps. Raises `LinkError` at the first that fails; what was done until then is in the journal."""
    for step in fix.steps:
        if isinstance(step.do, NewFile) and target.read(step.do.path) is not None:
            raise LinkError(f"{step.do.path} is there already, and not of our making; look into it, then move it away")
    entry = journal.begin(fix)
    for number, step in enumerate(fix.steps):
        entry = advanced(entry, number + 1, uncertain=True)
        journal.write(entry)
        if step.do is None:
            continue
        tell(as_text(step.do))
        try:
            _do(step.do, target)
        except LinkError:
            if not isinstance(step.do, Command) or step.do.whole:
                journal.write(advanced(entry, number))
            raise
    entry = replace(entry, uncertain=False, complete=True)
    journal.write(entry)
    return entry


def undo(entry: Entry, target: Target, journal: Journal, tell: Tell) -> None:
    """Take back what was done, the last step first. Raises `LinkError` if a step cannot be; the rest stays noted."""
    for number in range(entry.begun, 0, -1):
        action = entry.fix.steps[number - 1].undo
        sure = not (entry.uncertain and number == entry.begun)
        if action is not None:
            journal.write(advanced(entry, number, uncertain=True))
            try:
                _undo(action, target, tell, sure=sure)
            except LinkError:
                journal.write(advanced(entry, number, uncertain=not sure))
                raise
        journal.write(advanced(entry, number - 1))
    journal.forget(entry)


def _do(action: Action, target: Target) -> None:
    match action:
        case Command(argv):
            code, told = target.run(argv)
            if code != 0:
                raise LinkError(f"`{shlex.join(argv)}` failed: {_last(told, code)}")
        case NewFile(path, text, mode):
            target.create(path, text, mode)
        case RemoveFile(path, text):
            if target.read(path) == text:
                target.remove(path)
        case Require(argv, wanted, why):
            told = target.run(argv)[1]
            if _last(told, 0) not in wanted:
                raise LinkError(f"`{shlex.join(argv)}` says {_last(told, 0)!r}: {why}")


def _undo(action: Action, target: Target, tell: Tell, *, sure: bool) -> None:
    match action:
        case RemoveFile(path, text):
            found = target.read(path)
            if found is not None and found != text:
                tell(f"{path} was changed since; it stays")
                return
        case Command(device=device, expect=expect) if device:
            shown = target.device(device)
            if shown is None:
                tell(f"{device} is gone, and its settings with it")
                return
            if expect not in shown:
                tell(f"{device} was changed since; it stays")
                return
        case _:
            pass
    tell(as_text(action))
    try:
        _do(action, target)
    except LinkError:
        if sure:
            raise
        tell("this had not happened yet")


def _last(told: str, code: int) -> str:
    lines = told.strip().splitlines()
    return lines[-1] if lines else f"exit code {code}" if code else "nothing"
