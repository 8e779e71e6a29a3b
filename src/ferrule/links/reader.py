"""Read a tree without ever failing: what cannot be understood becomes an `Unreadable` and a ``None``."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ferrule.links.own import VERSIONS
from ferrule.links.tree import MAX_BYTES, Tree
from ferrule.links.types.inventory import Unreadable

T = TypeVar("T")

_NOT_NOW = {errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.ENODEV, errno.ENXIO, errno.ENETDOWN, errno.ENOTCONN}
"""Errors of kernel attributes that have no value at present, such as the speed of an interface without a carrier."""

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_MAX_TEXT = 256
_MAX_NAMES = 4096
_VERSION = re.compile(r"[\w.+!-]{1,64}", re.ASCII)
_FLAGS = {"0": False, "1": True, "N": False, "Y": True}


class Reader:
    """Reads ``tree``, and remembers what it read (``seen``) and what it could not (``unreadable``)."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.unreadable: list[Unreadable] = []
        self.seen: dict[str, str] = {}
        self._outputs: dict[str, str | OSError] = {}

    def problem(self, where: str, why: str) -> None:
        entry = Unreadable(where, why)
        if entry not in self.unreadable:
            self.unreadable.append(entry)

    def block(self, path: str, limit: int = MAX_BYTES) -> str | None:
        """A file of several lines, as it is."""
        try:
            text = self.tree.read(path, limit)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            if error.errno not in _NOT_NOW:
                self.problem(path, error.strerror or str(error))
            return None
        self.seen[path] = text
        return text

    def text(self, path: str) -> str | None:
        """An attribute of one line; None when it is empty."""
        found = self.block(path, 2 * _MAX_TEXT)
        if found is None:
            return None
        line = found.strip().strip("\0")
        if len(line) > _MAX_TEXT or not line.replace("\t", " ").isprintable():
            self.problem(path, "is not one line of text")
            return None
        return line or None

    def matched(self, path: str, pattern: str, make: Callable[[re.Match[str]], T]) -> T | None:
        """Value that ``make`` makes of an attribute that must look like ``pattern``."""
        line = self.text(path)
        if line is None:
            return None
        match = re.fullmatch(pattern, line, re.ASCII)
        if match is None:
            self.problem(path, f"{line!r} makes no sense here")
            return None
        return make(match)

    def number(self, path: str, low: int = 0, high: int = (1 << 64) - 1) -> int | None:
        """A whole number, decimal or with 0x; out of bounds it is a problem."""
        line = self.text(path)
        if line is None:
            return None
        value = whole(line)
        if value is None or not low <= value <= high:
            self.problem(path, f"{line!r} is no number from {low} to {high}")
            return None
        return value

    def flag(self, path: str) -> bool | None:
        return self.matched(path, "[01YN]", lambda match: _FLAGS[match[0]])

    def names(self, path: str) -> list[str]:
        """Names in the directory, 2 before 10; empty if it is not there."""
        try:
            found = self.tree.names(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.problem(path, error.strerror or str(error))
            return []
        good = [name for name in found if name.isprintable() and "/" not in name and name not in (".", "..", "")]
        if len(good) < len(found) or len(good) > _MAX_NAMES:
            self.problem(path, "holds names that make no sense")
        return sorted(good[:_MAX_NAMES], key=natural)

    def exists(self, path: str) -> bool:
        return self.resolve(path) is not None

    def resolve(self, path: str) -> str | None:
        """Real path that the path leads to; None if there is nothing."""
        try:
            return self.tree.resolve(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.problem(path, error.strerror or str(error))
            return None

    def last(self, path: str) -> str | None:
        """The last part of where the path leads, such as the name of a driver."""
        found = self.resolve(path)
        return None if found is None else found.rpartition("/")[2] or None

    def prefetch(self, commands: Iterable[str]) -> None:
        """Run these at the same time, to have their output at hand."""
        if not self.tree.live:
            return
        wanted = [command for command in commands if command not in self._outputs]
        with ThreadPoolExecutor(max_workers=8) as pool:
            self._outputs.update(zip(wanted, pool.map(self._run, wanted), strict=True))

    def output(self, command: str, *, needed: bool = False, quiet: bool = False) -> str | None:
        """Output of the command, or None. That it is not installed is a problem only when ``needed``; that it fails is
        none when ``quiet``, as for services that not every system runs.
        """
        if command not in self._outputs:
            self._outputs[command] = self._run(command)
        found = self._outputs[command]
        where = f"$ {command}"
        if isinstance(found, OSError):
            if needed or not (quiet or isinstance(found, FileNotFoundError)):
                self.problem(where, found.strerror or str(found))
            return None
        self.seen[where] = found
        return found

    def refused(self, command: str) -> bool:
        """Whether the command is there and did not do what it should, as where only root may ask. It was run before."""
        found = self._outputs.get(command)
        return isinstance(found, OSError) and not isinstance(found, FileNotFoundError)

    def note(self, where: str, line: str) -> str:
        """Remember a line of some longer output as what stands at ``where``, which is returned."""
        self.seen[where] = line
        return where

    def json(self, command: str, *, needed: bool = False, quiet: bool = False) -> Any:
        """Output of the command, read as JSON; None if it is not."""
        found = self.output(command, needed=needed, quiet=quiet)
        if found is None:
            return None
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            self.problem(f"$ {command}", "is not JSON")
            return None

    def _run(self, command: str) -> str | OSError:
        try:
            return self.tree.run(command)
        except OSError as error:
            return error


def software(reader: Reader) -> tuple[tuple[str, str], ...]:
    """The lines ``name version`` of `ferrule.links.own.versions`."""
    lines = (line.split() for line in (reader.output(VERSIONS, quiet=True) or "").splitlines())
    good = (words for words in lines if len(words) == 2 and all(map(_VERSION.fullmatch, words)))
    return tuple((name, version) for name, version in good)


def whole(text: str) -> int | None:
    """A decimal number, or a hexadecimal one with 0x; None if it is neither."""
    if not re.fullmatch(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,32}", text):
        return None
    return int(text, 0) if text[:2] in ("0x", "0X") else int(text)


def natural(name: str) -> list[tuple[int, str]]:
    """For sorting: eth2 before eth10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if part.isdecimal() and part.isascii() else (0, part) for part in parts]


def table(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object; an empty one otherwise."""
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[dict[str, Any]]:
    """The objects in a JSON array."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def string(value: Any) -> str | None:
    """``value`` if it is a JSON string with something in it that can be shown."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_TEXT:
        return None
    return "".join(letter if letter.isprintable() else "?" for letter in value.strip())


def count(value: Any, high: int = (1 << 64) - 1) -> int | None:
    """``value`` if it is a whole JSON number from 0 to ``high``."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= high else None


def identity(unique_id: str | None) -> str | None:
    """A short hash of a device's unique id: the same on every machine that sees the device, and not the id."""
    if unique_id is None:
        return None
    return hashlib.sha256(unique_id.strip().lower().encode()).hexdigest()[:12]


def shortened(text: str, length: int = 256) -> str:
    """As one line that can be shown, of at most so many letters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text.strip())
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"
