"""Actions of a fix, as data: commands (lists of arguments, never text for a shell), files, and the undo of each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import msgspec


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="command"):
    """A program and its arguments. ``whole``: if it fails, it has done nothing.

    To undo something: ``device`` is the interface without which nothing is left to undo; ``expect`` is what
    ``ip link show`` must tell of it, or else it was changed since, and it is left alone.
    """

    argv: tuple[str, ...]
    device: str = ""
    expect: str = ""
    whole: bool = False


class NewFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="new-file"):
    """A file that is not there yet; one that is there is never overwritten."""

    path: str
    text: str
    mode: int = 0o644


class RemoveFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="remove-file"):
    """Take a file away if it still says ``text``; a changed one stays."""

    path: str
    text: str


class Require(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="require"):
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


def as_text(action: Action) -> str:
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
