"""Record everything that is read of a machine."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ferrule.links.record import VERSION, Header, LinksRecord
from ferrule.links.tree import MAX_BYTES, Tree

T = TypeVar("T")

_TABLES = ("gids", "pkeys")
"""Most entries in these directories are zeros, and there are hundreds."""


class Recorder:
    """A tree that remembers all that is read of ``tree``, files under their real paths."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.name, self.live = tree, tree.name, tree.live
        self.directories: dict[str, list[str]] = {}
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.commands: dict[str, str] = {}
        self._known: dict[str, str] = {}

    def read(self, path: str, limit: int = MAX_BYTES) -> str:
        real = self._real(path)
        text = self._watched(real, lambda: self.tree.read(path, limit))
        if not (_of_table(real) and not text.strip().strip("0x:")):
            self.files[real] = text
        return text

    def names(self, path: str) -> Sequence[str]:
        real = self._real(path)
        found = self._watched(real, lambda: self.tree.names(path))
        self.directories[real] = [] if _is_table(real) else sorted(found)
        return found

    def resolve(self, path: str) -> str:
        real = self._real(path)
        self.directories.setdefault(real, [])
        return real

    def run(self, command: str) -> str:
        told = self._watched(command, lambda: self.tree.run(command))
        self.commands[command] = told
        return told

    def _real(self, path: str) -> str:
        """Resolved path; each link on the way is remembered at its own real place."""
        if path.startswith("/proc/"):
            return path  # /proc/self leads to a number that means nothing later
        if path not in self._known:
            real = self._watched(path, lambda: self.tree.resolve(path))
            above, _, last = path.rpartition("/")
            place = posixpath.join(self._real(above), last) if above else path
            if place != real:
                self.links[place] = real
            self._known[path] = real
        return self._known[path]

    def _watched(self, where: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise
        except OSError as error:
            self.errors[where] = errno.errorcode.get(error.errno or 0, "EIO")
            raise

    def record(self, header: Header) -> LinksRecord:
        """All of it, not redacted yet."""
        listed = sorted(self.directories.items())
        return LinksRecord(
            version=VERSION,
            header=header,
            files=_sorted(self.files),
            directories={
                _utf8(path): list(map(_utf8, names)) for path, names in listed if names or path not in self.files
            },
            links=_sorted({path: _utf8(target) for path, target in self.links.items()}),
            errors=_sorted(self.errors),
            commands=_sorted(self.commands),
        )


def _sorted(part: Mapping[str, str]) -> dict[str, str]:
    return {_utf8(name): text for name, text in sorted(part.items())}


def _utf8(name: str) -> str:
    """A file's name as JSON can hold it: on Linux names are any bytes."""
    return name.encode(errors="replace").decode()


def _is_table(path: str) -> bool:
    return path.rpartition("/")[2] in _TABLES


def _of_table(path: str) -> bool:
    return _is_table(path.rpartition("/")[0])
