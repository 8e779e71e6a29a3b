"""Sources of facts about a machine: the machine itself, or a record of one.

A tree answers four questions: what a file says, what a directory holds, where a link leads, and what a command prints.
It raises `OSError` like the system would; `FileNotFoundError` is for what is not there, programs included.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ferrule.links.own import own_command

MAX_BYTES = 1 << 20
"""Of a file; nothing that is looked at is that large."""

_SECONDS = 5.0
_SLOW_SECONDS = {"system_profiler": 20.0}
"""It asks every device of a kind, which takes some seconds on its own."""

_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/libexec/ApplicationFirewall"
_MAX_HOPS = 40


class Tree(Protocol):
    """``name``: ``live``, or that of the record. ``live``: whether commands really run, and take their time."""

    @property
    def name(self) -> str: ...

    @property
    def live(self) -> bool: ...

    def read(self, path: str, limit: int = MAX_BYTES) -> str:
        """The text of a file, at most ``limit`` bytes of it."""
        ...

    def names(self, path: str) -> Sequence[str]:
        """Names in a directory."""
        ...

    def resolve(self, path: str) -> str:
        """The path without symbolic links."""
        ...

    def run(self, command: str) -> str:
        """Output of the command."""
        ...


class LiveTree:
    """This machine."""

    name = "live"
    live = True

    def read(self, path: str, limit: int = MAX_BYTES) -> str:
        with Path(path).open("rb") as file:
            return file.read(limit).decode("utf-8", errors="replace")

    def names(self, path: str) -> Sequence[str]:
        return os.listdir(path)  # noqa: PTH208 - names, not paths

    def resolve(self, path: str) -> str:
        return os.path.realpath(path, strict=True)

    def run(self, command: str) -> str:
        own = own_command(command)
        if own is not None:
            return own()
        arguments = shlex.split(command)
        program = shutil.which(arguments[0]) or shutil.which(arguments[0], path=_PLACES)
        if program is None:
            raise FileNotFoundError(errno.ENOENT, f"there is no `{arguments[0]}`")
        seconds = _SLOW_SECONDS.get(arguments[0], _SECONDS)
        try:
            done = subprocess.run(
                [program, *arguments[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=seconds,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s") from None
        told = done.stdout.decode("utf-8", errors="replace")
        if done.returncode != 0 and not told.strip():
            why = done.stderr.decode("utf-8", errors="replace").strip().splitlines()
            raise OSError(errno.EIO, why[-1] if why else f"exit code {done.returncode}")
        return told


@dataclass(frozen=True)
class RecordedTree:
    """A machine as it once was.

    ``files``: path to text; ``directories``: path to names, where files and links alone do not tell; ``links``: path
    to where it leads, as an absolute path; ``errors``: a path or command to the name of the error that reading gave;
    ``commands``: to what they printed.
    """

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    _children: dict[str, dict[str, None]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _targets: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    _real: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    live = False

    def __post_init__(self) -> None:
        self._targets.update(self.links.values())
        for path in (*self.files, *self.directories, *self.links, *self.errors):
            above, slash, last = path.rpartition("/")
            while slash and last not in self._children.setdefault(above or "/", {}):
                self._children[above or "/"][last] = None
                above, slash, last = above.rpartition("/")
        for path, names in self.directories.items():
            self._children.setdefault(path, {}).update(dict.fromkeys(names))

    def read(self, path: str, limit: int = MAX_BYTES) -> str:
        found = self._follow(path)
        self._fail(found)
        if found not in self.files:
            raise IsADirectoryError(errno.EISDIR, "a directory") if found in self._children else _absent(path)
        return self.files[found][:limit]

    def names(self, path: str) -> Sequence[str]:
        found = self._follow(path)
        self._fail(found)
        if found not in self._children:
            raise NotADirectoryError(errno.ENOTDIR, "no directory") if found in self.files else _absent(path)
        return list(self._children[found])

    def resolve(self, path: str) -> str:
        found = self._follow(path)
        above, _, last = found.rpartition("/")
        listed = last in self._children.get(above or "/", ())
        # What a link leads to need not be in the record.
        if not listed and found not in self._children and found not in self._targets:
            raise _absent(path)
        return found

    def run(self, command: str) -> str:
        self._fail(command)
        if command not in self.commands:
            raise FileNotFoundError(errno.ENOENT, f"`{command}` is not in the record")
        return self.commands[command]

    def _follow(self, path: str) -> str:
        return _followed(path, self.links.get, self._real)

    def _fail(self, what: str) -> None:
        name = self.errors.get(what)
        if name is not None:
            code = getattr(errno, name, errno.EIO) if name.startswith("E") else errno.EIO
            raise OSError(code, os.strerror(code))


def _followed(path: str, target_of: Callable[[str], str | None], known: dict[str, str], hops: int = 0) -> str:
    """``path`` without symbolic links, its directory first, and never out of ``/``. ``target_of``: where the link at a
    place leads, None if there is none; ``known``: directories that were followed before."""
    if hops > _MAX_HOPS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    above, _, last = path.rpartition("/")
    if above and above not in known:
        known[above] = _followed(above, target_of, known, hops)
    home = known[above] if above else ""
    target = target_of(f"{home}/{last}")
    if target is None:
        return f"{home}/{last}"
    return _followed(posixpath.normpath(posixpath.join(f"{home}/", target)), target_of, known, hops + 1)


def _absent(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


@dataclass(frozen=True)
class DirectoryTree:
    """A copy of a machine's files below ``root``. Links never lead out of it: ``/`` is ``root`` for them, too.

    What a command printed stands in ``commands/``, in a file of the command's name.
    """

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    live = False

    def read(self, path: str, limit: int = MAX_BYTES) -> str:
        with self._at(self.resolve(path)).open("rb") as file:
            return file.read(limit).decode("utf-8", errors="replace")

    def names(self, path: str) -> Sequence[str]:
        return os.listdir(self._at(self.resolve(path)))  # noqa: PTH208 - names, not paths

    def resolve(self, path: str) -> str:
        found = _followed(path, self._target, {})
        if not self._at(found).exists():
            raise _absent(path)
        return found

    def run(self, command: str) -> str:
        file = self.root / "commands" / command.replace("/", "_")
        if file.is_symlink() or not file.is_file():
            raise FileNotFoundError(errno.ENOENT, f"`{command}` is not in the record")
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode("utf-8", errors="replace")

    def _target(self, place: str) -> str | None:
        here = self._at(place)
        return str(here.readlink()) if here.is_symlink() else None

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")
