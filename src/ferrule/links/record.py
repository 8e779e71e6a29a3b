"""Save what a machine says about its cables, for a bug report or a test, and open such a record again.

A record is one JSON file (``.json``, or ``.json.gz``) with everything that a `Probe` reads, and nothing else. A copy of
the files themselves in a directory can be opened too, with what commands printed in ``commands/``.
"""

from __future__ import annotations

import errno
import gzip
import json
import posixpath
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ferrule.errors import LinkError
from ferrule.links.own import VERSIONS
from ferrule.links.reader import table
from ferrule.links.redact import Redactor
from ferrule.links.tree import MAX_BYTES, DirectoryTree, RecordedTree, Tree

T = TypeVar("T")

FORMAT = "ferrule-links-record"
VERSION = 1

_MAX_RECORD_BYTES = 64 << 20
_PARTS = ("files", "directories", "links", "errors", "commands")
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

    def to_json(self, redactor: Redactor | None, header: Mapping[str, Any]) -> dict[str, Any]:
        """The record, redacted by ``redactor``; the header tells what was."""
        parts: dict[str, Any] = {part: dict(sorted(getattr(self, part).items())) for part in _PARTS}
        listed = parts["directories"].items()
        parts["directories"] = {path: names for path, names in listed if names or path not in self.files}
        if redactor is not None:
            parts = redactor.record(parts)
        redacted = {} if redactor is None else redactor.counts()
        return {"format": FORMAT, "version": VERSION, "header": {**header, "redacted": redacted}, **parts}


def _is_table(path: str) -> bool:
    return path.rpartition("/")[2] in _TABLES


def _of_table(path: str) -> bool:
    return _is_table(path.rpartition("/")[0])


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Raises `LinkError` if it cannot be written, or if the file is there already."""
    data = json.dumps(record, indent=1, ensure_ascii=False).encode(errors="replace") + b"\n"
    try:
        with path.open("xb") as file:
            file.write(gzip.compress(data) if path.suffix == ".gz" else data)
    except FileExistsError:
        raise LinkError(f"{path} is there already; choose another name") from None
    except OSError as error:
        raise LinkError(f"cannot write {path}: {error.strerror}") from error


def open_record(path: Path) -> Tree:
    """A record of `write_record`, or a directory. Raises `LinkError` if it is neither.

    What is wrong inside a record of the right form is no error here: it is found when it is read.
    """
    if path.is_dir():
        return DirectoryTree(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = _unzip(data)
    except OSError as error:
        raise LinkError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, zlib.error, EOFError) as error:
        raise LinkError(f"{path} is no record of `ferrule links record`: {_shortly(error)}") from error
    return parse_record(path.name, data, str(path))


def parse_record(name: str, data: bytes, where: str) -> RecordedTree:
    """The tree in the text of a record, called ``name``. Raises `LinkError` that says ``where`` if it is none."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"{where} is no record of `ferrule links record`: {_shortly(error)}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise LinkError(f"{where} is no record of `ferrule links record`")
    if record.get("version") != VERSION:
        raise LinkError(f"{where} was written by another Ferrule (version {record.get('version')!r} of the format)")
    return tree_of(name, record)


def tree_of(name: str, record: Mapping[str, Any]) -> RecordedTree:
    """The tree that a record's JSON describes; whatever in it has not the right type is left out."""
    parts: dict[str, dict[str, Any]] = {}
    for part in _PARTS:
        found = record.get(part)
        entries = found.items() if isinstance(found, dict) else ()
        if part == "directories":
            lists = ((path, names) for path, names in entries if isinstance(names, list))
            parts[part] = {path: [one for one in names if isinstance(one, str)] for path, names in lists}
        else:
            parts[part] = {path: text for path, text in entries if isinstance(text, str)}
    made_by = table(record.get("header")).get("made_by")
    if VERSIONS not in parts["commands"] and isinstance(made_by, str):
        parts["commands"][VERSIONS] = f"{made_by}\n"  # an older Ferrule told no more than that
    return RecordedTree(name, **parts)


def _unzip(data: bytes) -> bytes:
    unzip = zlib.decompressobj(wbits=31)
    plain = unzip.decompress(data, _MAX_RECORD_BYTES)
    if unzip.unconsumed_tail or not unzip.eof:
        raise ValueError("it is cut off, or too large")
    return plain


def _shortly(error: Exception) -> str:
    return str(error).partition("\n")[0][:100]
