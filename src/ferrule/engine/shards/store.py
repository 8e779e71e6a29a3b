"""The parts of a model that a host received: a directory like the model's own, with holes where nothing is needed.

Its files have the names and sizes of the model's, so that the loader reads them as it reads any; what another plan
needs later is filled in. One store serves all ranks of a host.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from ferrule.engine.shards.ledger import Ledger, Stamp, digest
from ferrule.engine.shards.pieces import Coverage, Piece, cut_up
from ferrule.engine.shards.weight_files import Layout, Place, Reader, read_layout
from ferrule.errors import EngineError, ModelError
from ferrule.files import locked, write_whole
from ferrule.units import format_bytes

LOCK_TIMEOUT = 1800.0
"""Seconds that a start waits for another one that fills the same store."""
FLUSH_BYTES = 64 << 20
FLUSH_SECONDS = 1.0
"""After so many bytes or seconds the ledger is written: what is later than that, a process that is killed has to
receive again."""
SPARE_BYTES = 64 << 20
"""Of a disk, left free."""
LEDGER = "ledger.jsonl"
CHECKERS = 4
"""Threads that read and hash what is there."""

Done = Callable[[int, int], None]


class Store:
    """The store of one model below ``root``. Use `open` before anything but `token` and `ready`, and `close` after."""

    def __init__(self, root: Path, model: str) -> None:
        self.path = root / model
        self._stack = ExitStack()
        self._open: dict[str, int] = {}
        self._unnoted: list[tuple[Piece, bytes]] = []
        self._unnoted_bytes = 0
        self._flushed = time.monotonic()
        self._ledger: Ledger | None = None
        self._places: dict[str, Place] = {}

    def token(self) -> str:
        """The same for all ranks that see this very directory, and for no others. Raises `EngineError`."""
        try:
            with locked(self.path / ".lock-token", 60):
                file = self.path / ".token"
                if not file.exists():
                    write_whole(file, secrets.token_hex(16))
                return file.read_text()
        except (OSError, TimeoutError) as error:
            raise self._unusable(error) from None

    def ready(self) -> bool:
        """Whether what is copied whole is there, as it was sent."""
        ledger = Ledger.read(self.path / LEDGER)
        try:
            return ledger is not None and ledger.layout == _digest_of(read_layout(self.path))
        except ModelError:
            return False

    def lay_out(self, layout: Layout) -> None:
        """Write what is copied whole, and files of holes. Raises `EngineError`."""
        try:
            for name, text in layout.small.items():
                _write(self.path / name, {0: text}, len(text))
            places = layout.places()
            for file in layout.files:
                states = {places[key].offset: data for key, data in file.states.items()}
                _write(self.path / file.name, {0: file.head, **states}, file.size)
            Ledger.begin(self.path / LEDGER, _digest_of(layout))
        except OSError as error:
            raise self._unusable(error) from None

    def open(self) -> None:
        """Wait until no other process fills the store, and read what it holds. Raises `EngineError`."""
        try:
            self._stack.enter_context(locked(self.path / ".lock", LOCK_TIMEOUT))
        except (OSError, TimeoutError) as error:
            raise self._unusable(error) from None

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._stack.close()

    def check(self, on_done: Done) -> int:
        """Read again what may have changed since it was last known to be right, and forget what is not as it was
        received. Returns how many pieces that were."""
        layout = read_layout(self.path)
        self._places = layout.places()
        self._ledger = ledger = Ledger.read(self.path / LEDGER) or Ledger.begin(self.path / LEDGER, _digest_of(layout))
        stamps = self._stamps()
        known = {piece: hashed for piece, hashed in ledger.pieces.items() if piece.key in self._places}
        doubtful = [piece for piece in known if ledger.seen.get(file := self._places[piece.key].file) != stamps[file]]
        total, done, damaged = sum(self._bytes(piece) for piece in doubtful), 0, []

        def same(piece: Piece) -> bool:
            with Reader(self.path, self._places) as reader:
                return digest(reader.read(piece)) == known[piece]

        with ThreadPoolExecutor(CHECKERS) as pool:
            for piece, right in zip(doubtful, pool.map(same, doubtful), strict=True):
                done += self._bytes(piece)
                on_done(done, total)
                if not right:
                    damaged.append(piece)
        if damaged:
            ledger.drop(damaged)
        if doubtful:
            ledger.note_seen(stamps)
        return len(damaged)

    def missing(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Parts of ``pieces`` that are not there, each byte once, in pieces to be sent."""
        listed = Coverage(self._pieces)
        found = []
        for piece in pieces:
            place = self._places[piece.key]
            for part in listed.missing(piece, place.shape, place.item):
                found += cut_up(part, place.view(part.dim))
                listed.add(part)
        return found

    def check_room(self, pieces: Iterable[Piece]) -> None:
        """Raise `EngineError` where the disk has no room for ``pieces``."""
        needed = sum(piece.disk_bytes(self._places[piece.key].view(piece.dim)) for piece in pieces)
        free = shutil.disk_usage(self.path).free
        if needed and needed + SPARE_BYTES > free:
            raise EngineError(
                f"{self.path} needs {format_bytes(needed)} more for this host's part of the model, but its disk has "
                f"{format_bytes(free)} free; free some, or set FERRULE_MODEL_CACHE to a directory of another disk"
            )

    def write(self, piece: Piece, data: memoryview, hashed: bytes) -> None:
        """Keep ``data``, which has the digest ``hashed``. Raises `EngineError` where the disk is full or fails."""
        place = self._places[piece.key]
        try:
            if place.file not in self._open:
                self._open[place.file] = os.open(self.path / place.file, os.O_RDWR)
            at = 0
            for offset, length in piece.runs(place.view(piece.dim)):
                end = at + length
                while at < end:
                    position = place.offset + offset + length - (end - at)
                    at += os.pwrite(self._open[place.file], data[at:end], position)
        except OSError as error:
            raise self._unusable(error) from None
        self._unnoted.append((piece, hashed))
        self._unnoted_bytes += len(data)
        if self._unnoted_bytes >= FLUSH_BYTES or time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Bring what was written to the disk, and then note it."""
        try:
            for descriptor in self._open.values():
                os.fsync(descriptor)
            self._noted.note(self._unnoted)
        except OSError as error:
            raise self._unusable(error) from None
        self._unnoted, self._unnoted_bytes, self._flushed = [], 0, time.monotonic()

    def finish(self) -> None:
        """Everything that was asked for is there: the next start need not read it again."""
        self.flush()
        self._noted.note_seen(self._stamps())

    @property
    def _noted(self) -> Ledger:
        assert self._ledger is not None, "check() comes first"
        return self._ledger

    @property
    def _pieces(self) -> list[Piece]:
        return [*self._noted.pieces, *(piece for piece, _ in self._unnoted)]

    def _bytes(self, piece: Piece) -> int:
        return piece.bytes(self._places[piece.key].view(piece.dim))

    def _stamps(self) -> dict[str, Stamp]:
        found = {}
        for name in {place.file for place in self._places.values()}:
            stat = (self.path / name).stat()
            found[name] = (stat.st_size, stat.st_mtime_ns)
        return found

    def _unusable(self, error: OSError | TimeoutError) -> EngineError:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.path).free
            return EngineError(
                f"the disk of {self.path} is full ({format_bytes(free)} free); free some, or set FERRULE_MODEL_CACHE "
                "to a directory of another disk; what was received so far is kept"
            )
        return EngineError(
            f"{self.path}, where this host keeps its parts of models, cannot be used: {error}; "
            "set FERRULE_MODEL_CACHE to a directory that can be written"
        )


def _digest_of(layout: Layout) -> str:
    return digest(layout.pack()).hex()


def _write(file: Path, parts: Mapping[int, bytes], size: int) -> None:
    """Replace ``file`` by one of ``size`` bytes with ``parts`` at their offsets and holes between them."""
    fresh = file.with_name(f".{file.name}.new")
    with fresh.open("wb") as opened:
        for offset, data in parts.items():
            opened.seek(offset)
            opened.write(data)
        opened.truncate(size)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(file)
