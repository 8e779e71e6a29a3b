"""File of a rank's packed matrices on its disk: written once, and there after a restart.

A directory is one rank's part of one model in one format. It is not deleted while a rank uses it; one at a time writes
there, and what others still read of a file that is written anew is theirs. Beside the file lies an index, which is
written when the file is whole. Both hold weights only, and nothing of what was asked or answered.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import weakref
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from ferrule._native import Matrix
from ferrule.engine.rank.stream.disk import open_fastest, whole_pages
from ferrule.engine.weights.matrix import PackedMatrix
from ferrule.errors import EngineError
from ferrule.files import FileRecord, delete_oldest, hold, read_record, write_record
from ferrule.units import format_bytes

log = logging.getLogger(__name__)

VERSION = 1
"""Of the file and of how matrices are packed."""
SPARE_BYTES = 256 << 20
"""Of a disk, left free."""
LOCK_SECONDS = 1800.0
"""That a start waits for another one that writes the same file."""
_LOCK, _WRITER, _DATA, _FRESH, _INDEX = ".lock", ".writer", "weights", ".new", "index.json"
_BLOCK = 4 << 20
_MOST_INDEX = 256 << 20


class Held(msgspec.Struct, frozen=True):
    """One matrix. ``layout`` and ``order``: of `Matrix`. ``check``: CRC-32."""

    name: str
    layout: tuple[int, int, int, int, int, int, int, int]
    order: list[int]
    extra: int
    offset: int
    bytes: int
    check: int


class Index(FileRecord, frozen=True, tag="weights"):
    """``stamp``: of the file when it was last known to be as it was written: inode, size, time of its last change."""

    version: int
    stamp: tuple[int, int, int]
    matrices: list[Held]


class MatrixFile:
    """The file in the directory ``path``, whose other rooms beside it may be deleted to make room for ``expected``
    bytes. Raises `EngineError` where it cannot be used."""

    def __init__(self, path: Path, expected: int) -> None:
        self.path, self.file = path, path / _DATA
        self._expected = expected
        self._known: dict[str, Held] = {}
        self._end = 0
        self._writing: int | None = None
        self._writer: int | None = None
        self._unlock: weakref.finalize[[int], MatrixFile] | None = None
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._unlock = weakref.finalize(self, os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not self._read():
                self._writer = hold(path / _WRITER, LOCK_SECONDS)
                if self._writer is None:
                    raise OSError(errno.EBUSY, f"another process has held {path / _WRITER} for {LOCK_SECONDS:g} s")
                if self._read():  # another rank has written it meanwhile
                    self._let_go()
                else:
                    self._begin()
        except OSError as error:
            self.close()
            raise self._unusable(error) from None

    def kept(self, name: str, dtype: torch.dtype) -> PackedMatrix | None:
        """A matrix that was written, without its data; None where it was not."""
        held = self._known.get(name)
        return None if held is None else _matrix(held, dtype)

    def keep(self, name: str, matrix: PackedMatrix) -> None:
        """Write one. Raises `EngineError`."""
        native = matrix.matrix
        data = (ctypes.c_ubyte * native.bytes).from_address(native.address)
        extra = matrix.bytes - native.bytes
        held = Held(name, native.layout, native.order, extra, self._end, native.bytes, zlib.crc32(data))
        assert self._writing is not None, f"{name} is not in {self.file}, which is whole"
        try:
            _write(self._writing, memoryview(data).cast("B"), held.offset)
        except OSError as error:
            raise self._unusable(error) from None
        self._known[name] = held
        self._end += whole_pages(held.bytes)

    def finish(self) -> None:
        """Everything is written. Raises `EngineError`."""
        if self._writing is None:
            return
        try:
            os.truncate(self._writing, self._end)
            os.fsync(self._writing)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._writing, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(self._writing)
            self._writing = None
            self.file.with_suffix(_FRESH).replace(self.file)
            self._note()
            self._let_go()
        except OSError as error:
            raise self._unusable(error) from None

    def extent(self, name: str) -> tuple[int, int]:
        """Offset and bytes."""
        held = self._known[name]
        return held.offset, held.bytes

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def load(self, name: str, matrix: PackedMatrix) -> None:
        """Fill one of `kept` with its data. Raises `EngineError`."""
        held = self._known[name]
        to = memoryview((ctypes.c_ubyte * held.bytes).from_address(matrix.matrix.address)).cast("B")
        try:
            with self.file.open("rb", buffering=0) as file:
                at = 0
                while at < held.bytes:
                    got = os.preadv(file.fileno(), [to[at : at + _BLOCK]], held.offset + at)
                    if not got:
                        raise OSError(errno.EIO, "the file ends too early")
                    at += got
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), held.offset, held.bytes, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._unusable(error) from None

    def open(self) -> tuple[int, float, str]:
        """See `open_fastest`. Raises `EngineError`."""
        try:
            return open_fastest(self.file, self._end)
        except OSError as error:
            raise self._unusable(error) from None

    def failed(self, error: Exception) -> EngineError:
        """For weights that could not be read in a step. The next start looks at the file anew."""
        with suppress(OSError):
            (self.path / _INDEX).unlink()
        return EngineError(
            f"weights that are read from {self.file} were lost: {error}; the file is written anew at the next start, "
            "but look after the disk (dmesg, smartctl)"
        )

    def close(self) -> None:
        if self._writing is not None:
            os.close(self._writing)
            self._writing = None
        self._let_go()
        if self._unlock is not None:
            self._unlock()

    def _let_go(self) -> None:
        """Others may write."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def _read(self) -> bool:
        """Whether it is there, whole and as it was written."""
        try:
            index = read_record(self.path / _INDEX, Index, most=_MOST_INDEX)
            stat = self.file.stat()
        except (OSError, msgspec.MsgspecError):
            return False
        end = max((held.offset + whole_pages(held.bytes) for held in index.matrices), default=0)
        if index.version != VERSION or stat.st_size != end:
            return False
        if index.stamp != _stamp(stat) and not self._same(index):
            log.warning("%s is not what was written there; it is written anew", self.file)
            return False
        self._known, self._end = {held.name: held for held in index.matrices}, end
        with suppress(OSError):
            os.utime(self.path)  # by which the oldest is deleted first
            if index.stamp != _stamp(stat):
                self._note()
        return True

    def _same(self, index: Index) -> bool:
        with self.file.open("rb", buffering=0) as file:
            return all(_check(file.fileno(), held) == held.check for held in index.matrices)

    def _begin(self) -> None:
        with suppress(FileNotFoundError):
            (self.path / _INDEX).unlink()
        fresh = self.file.with_suffix(_FRESH)
        for old in (self.file, fresh):
            with suppress(FileNotFoundError):
                old.unlink()
        self._known, self._end = {}, 0
        make_room(self.path, self._expected + SPARE_BYTES)
        free = shutil.disk_usage(self.path).free
        if self._expected + SPARE_BYTES > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._writing = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _note(self) -> None:
        stamp = _stamp(self.file.stat())
        write_record(self.path / _INDEX, Index(VERSION, stamp, list(self._known.values())), private=True)

    def _unusable(self, error: OSError) -> EngineError:
        where = "set FERRULE_MODEL_CACHE to a directory of another disk"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.path).free
            return EngineError(
                f"the disk of {self.path} has no room for the {format_bytes(self._expected)} of weights that are to "
                f"be read from it ({format_bytes(free)} free); free some, or {where}"
            )
        return EngineError(f"{self.file}, from which weights are read, cannot be used: {error}; {where}")


def make_room(path: Path, size: int) -> None:
    """Delete what other models have left beside ``path``, the oldest first: until ``size`` bytes fit on the disk, and
    what is left takes no more than the disk has free then. What a rank uses stays."""

    def enough(used: int) -> bool:
        free = shutil.disk_usage(path).free
        return size <= free and used <= free - size

    delete_oldest(path.parent, path, _LOCK, enough)


def _matrix(held: Held, dtype: torch.dtype) -> PackedMatrix:
    native = Matrix(*held.layout)
    if held.order:
        native.set_order(held.order)
    rows, columns = held.layout[:2]
    return PackedMatrix(native, (rows, columns), dtype, held.extra)


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(descriptor, data[at : at + _BLOCK], offset + at)


def _check(descriptor: int, held: Held) -> int:
    check, at = 0, 0
    while at < held.bytes:
        data = os.pread(descriptor, min(_BLOCK, held.bytes - at), held.offset + at)
        if not data:
            return -1
        check, at = zlib.crc32(data, check), at + len(data)
    return check
