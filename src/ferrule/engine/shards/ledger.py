"""Ledger of a shard store: its pieces of tensors with their digests, an append-only file, a line per piece."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ferrule.engine.shards.pieces import Piece
from ferrule.files import write_whole

DIGEST_BYTES = 16

Stamp = tuple[int, int]
"""A file's size and time of change in nanoseconds."""


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """Digest that tells whether a piece arrived, and is still, as it was sent."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class _Start(msgspec.Struct, tag_field="ferrule shards", tag=2):
    """The first line; the tag is the format's version."""

    layout: str


class _Noted(msgspec.Struct, tag="piece"):
    piece: Piece
    digest: bytes


class _Seen(msgspec.Struct, tag="seen"):
    seen: dict[str, Stamp]


_entries = msgspec.json.Decoder(_Noted | _Seen)


@dataclass
class Ledger:
    """``layout``: a digest of what was copied whole. ``pieces`` and their digests; ``seen``: the files' stamps when all
    of them were last known to be right."""

    file: Path
    layout: str
    pieces: dict[Piece, bytes] = field(default_factory=dict)
    seen: Mapping[str, Stamp] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Ledger | None:
        """None where there is none. What a killed process left half written at the end counts as not there."""
        try:
            first, *lines = file.read_text(errors="replace").split("\n")
        except FileNotFoundError:
            return None
        try:
            ledger = cls(file, msgspec.json.decode(first, type=_Start).layout)
        except msgspec.DecodeError:
            return None
        for line in lines[:-1]:
            try:
                entry = _entries.decode(line)
            except msgspec.DecodeError:  # a line that the end of a process tore in two
                continue
            if isinstance(entry, _Seen):
                ledger.seen = entry.seen
            else:
                ledger.pieces[entry.piece] = entry.digest
        return ledger

    @classmethod
    def begin(cls, file: Path, layout: str) -> Ledger:
        write_whole(file, _line(_Start(layout)))
        return cls(file, layout)

    def note(self, found: Iterable[tuple[Piece, bytes]]) -> None:
        """Add pieces, which must be on the disk by now."""
        found = list(found)
        self.pieces.update(found)
        self._append("".join(_line(_Noted(piece, hashed)) for piece, hashed in found))

    def note_seen(self, stamps: Mapping[str, Stamp]) -> None:
        """All pieces are right, with the files as they are now."""
        self.seen = dict(stamps)
        self._append(_line(_Seen(self.seen)))

    def drop(self, damaged: Iterable[Piece]) -> None:
        for piece in damaged:
            del self.pieces[piece]
        self.seen = {}
        lines = [_line(_Noted(piece, hashed)) for piece, hashed in self.pieces.items()]
        write_whole(self.file, _line(_Start(self.layout)) + "".join(lines))

    def _append(self, text: str) -> None:
        with self.file.open("ab") as opened:
            # After a torn line a new one begins.
            opened.write(b"\n" + text.encode() if _torn(self.file) else text.encode())
            opened.flush()
            os.fsync(opened.fileno())


def _torn(file: Path) -> bool:
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read(1) != b"\n"


def _line(entry: _Start | _Noted | _Seen) -> str:
    return msgspec.json.encode(entry).decode() + "\n"
