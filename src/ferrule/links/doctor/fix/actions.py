"""What a fix does, as data: commands as lists of words (never text for a shell), files, and how each is taken back."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from typing import Any

from ferrule.errors import LinkError


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its words. ``whole``: if it fails, it has done nothing.

    To undo something: ``device`` is the interface without which nothing is left to undo; ``expect`` is what
    ``ip link show`` must tell of it, or else it was changed since, and it is left alone.
    """

    argv: tuple[str, ...]
    device: str = ""
    expect: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is not there yet; one that is there is never overwritten."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Take a file away if it still says ``text``; a changed one stays."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Require:
    """Go on only if the program prints one of ``wanted``; ``why`` says what to do otherwise."""

    argv: tuple[str, ...]
    wanted: tuple[str, ...]
    why: str


Action = Command | NewFile | RemoveFile | Require


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do, and how to undo it; either may be missing."""

    do: Action | None = None
    undo: Action | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """All steps that cure one finding. ``later``: when it shows, where that is not at once."""

    finding: str
    subject: str
    title: str
    steps: tuple[Step, ...]
    later: str = ""


def in_words(action: Action) -> str:
    """As a person would type it."""
    match action:
        case Command(argv):
            return shlex.join(argv)
        case NewFile(path, text):
            return f"write {path}:\n" + "\n".join(f"    {line}" for line in text.splitlines())
        case RemoveFile(path):
            return f"remove {path}"
        case Require(argv, wanted):
            return f"check that `{shlex.join(argv)}` says {' or '.join(wanted)}"


_KINDS: dict[str, type[Command | NewFile | RemoveFile | Require]] = {
    "command": Command,
    "new-file": NewFile,
    "remove-file": RemoveFile,
    "require": Require,
}


def to_json(action: Action | None) -> dict[str, Any] | None:
    if action is None:
        return None
    kind = next(name for name, one in _KINDS.items() if isinstance(action, one))
    return {"kind": kind, **dataclasses.asdict(action)}


def from_json(found: object) -> Action | None:
    """Raises `LinkError` for anything that `to_json` does not make."""
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("kind") not in _KINDS:
        raise LinkError("the journal holds an action of unknown kind")
    fields = {name: _tuple(value) for name, value in found.items() if name != "kind"}
    made = _KINDS[found["kind"]]
    types = {"argv": tuple, "wanted": tuple, "mode": int, "whole": bool}
    for name, value in fields.items():
        if not isinstance(value, types.get(name, str)) or (
            isinstance(value, tuple) and not all(isinstance(one, str) for one in value)
        ):
            raise LinkError(f"the journal holds an action with a wrong {name}")
    try:
        return made(**fields)
    except TypeError as error:
        raise LinkError(f"the journal holds an action with wrong fields: {error}") from error


def _tuple(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value
