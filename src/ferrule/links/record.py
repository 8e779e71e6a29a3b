"""The file in which ``ferrule links record`` saves what a machine says about its cables: JSON, or that by gzip.

A copy of the machine's own files in a directory can be opened too, with what commands printed in ``commands/``.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Literal

import msgspec

from ferrule.errors import LinkError
from ferrule.files import FileRecord, decode_record, encode_record
from ferrule.links.own import VERSIONS
from ferrule.links.tree import DirectoryTree, RecordedTree, Tree

VERSION = 1
_MAX_RECORD_BYTES = 64 << 20


class _Form(msgspec.Struct, frozen=True):
    """Parts of a record that are the same in any version."""

    format: Literal["ferrule-links-record"]
    version: int


class Header(msgspec.Struct, frozen=True):
    """``made_by``: Ferrule and its version; ``made_on``: the day; ``redacted``: how many different things of each kind
    were replaced."""

    made_by: str = ""
    made_on: str = ""
    redacted: dict[str, int] = {}


class LinksRecord(FileRecord, frozen=True, kw_only=True, tag_field="format", tag="ferrule-links-record"):
    """Everything that a `Probe` read, and nothing else: see `RecordedTree`."""

    version: int
    header: Header
    files: dict[str, str]
    directories: dict[str, list[str]]
    links: dict[str, str]
    errors: dict[str, str]
    commands: dict[str, str]

    def tree(self, name: str) -> RecordedTree:
        """The machine as it was, called ``name``."""
        commands = self.commands
        if VERSIONS not in commands and self.header.made_by:
            commands = {**commands, VERSIONS: f"{self.header.made_by}\n"}  # an older Ferrule told no more than that
        return RecordedTree(name, self.files, self.directories, self.links, self.errors, commands)


def write_record(record: LinksRecord, path: Path) -> None:
    """Raises `LinkError` if it cannot be written, or if the file is there already."""
    data = encode_record(record).encode()
    try:
        with path.open("xb") as file:
            file.write(gzip.compress(data) if path.suffix == ".gz" else data)
    except FileExistsError:
        raise LinkError(f"{path} is there already; choose another name") from None
    except OSError as error:
        raise LinkError(f"cannot write {path}: {error.strerror}") from error


def open_record(path: Path) -> Tree:
    """A record of `write_record`, or a directory. Raises `LinkError` if it is neither.

    What a recorded file or command says is not looked at: what makes no sense there is found when it is read.
    """
    if path.is_dir():
        return DirectoryTree(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_RECORD_BYTES + 1)
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
        version = msgspec.json.decode(data, type=_Form).version
        if version == VERSION:
            return decode_record(data, LinksRecord, most=_MAX_RECORD_BYTES).tree(name)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"{where} is no record of `ferrule links record`: {_shortly(error)}") from error
    raise LinkError(f"{where} was written by another Ferrule (version {version} of the format)")


def _unzip(data: bytes) -> bytes:
    unzip = zlib.decompressobj(wbits=31)
    plain = unzip.decompress(data, _MAX_RECORD_BYTES)
    if unzip.unconsumed_tail or not unzip.eof:
        raise ValueError("it is cut off, or too large")
    return plain


def _shortly(error: Exception) -> str:
    return str(error).partition("\n")[0][:100]
