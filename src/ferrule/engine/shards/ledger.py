"""Which pieces of which tensors a shard store holds, with their digests: a file that only grows, a line per piece."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ferrule.engine.shards.pieces import Piece
from ferrule.files import write_whole

DIGEST_BYTES = 16
VERSION = 1

Stamp = tuple[int, int]
"""A file's size and time of change in nanoseconds."""


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """What tells whether a piece arrived, and is still, as it was sent."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


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
            begun = json.loads(first)
            if begun["ferrule shards"] != VERSION:
                return None
            ledger = cls(file, begun["layout"])
        except (ValueError, TypeError, KeyError):
            return None
        for line in lines[:-1]:
            try:
                entry = json.loads(line)
                if isinstance(entry, dict):
                    ledger.seen = {str(name): (int(size), int(time)) for name, (size, time) in entry["seen"].items()}
                else:
                    *place, hexadecimal = entry
                    ledger.pieces[Piece(*place)] = bytes.fromhex(hexadecimal)
            except (ValueError, TypeError, KeyError):  # a line that the end of a process tore in two
                continue
        return ledger

    @classmethod
    def begin(cls, file: Path, layout: str) -> Ledger:
        write_whole(file, _first_line(layout))
        return cls(file, layout)

    def note(self, found: Iterable[tuple[Piece, bytes]]) -> None:
        """Add pieces, which must be on the disk by now."""
        found = list(found)
        self.pieces.update(found)
        self._append("".join(_line(piece, hashed) for piece, hashed in found))

    def note_seen(self, stamps: Mapping[str, Stamp]) -> None:
        """All pieces are right, with the files as they are now."""
        self.seen = dict(stamps)
        self._append(_seen_line(self.seen))

    def drop(self, damaged: Iterable[Piece]) -> None:
        for piece in damaged:
            del self.pieces[piece]
        self.seen = {}
        lines = [_line(piece, hashed) for piece, hashed in self.pieces.items()]
        write_whole(self.file, _first_line(self.layout) + "".join(lines))

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


def _first_line(layout: str) -> str:
    return json.dumps({"ferrule shards": VERSION, "layout": layout}) + "\n"


def _line(piece: Piece, hashed: bytes) -> str:
    place = [piece.key, piece.dim, piece.first, piece.last, piece.start, piece.stop]
    return json.dumps([*place, hashed.hex()], separators=(",", ":")) + "\n"


def _seen_line(stamps: Mapping[str, Stamp]) -> str:
    return json.dumps({"seen": dict(stamps)}, separators=(",", ":")) + "\n"
