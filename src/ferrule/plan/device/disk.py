"""Read speed of the disk of a folder, by a file of our own that is not in any cache of this machine."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

DISK_BYTES = 64 << 20
_BLOCK = 4 << 20
_SPARE = 8
"""The disk must have so many times the file's size left."""
_RESIDENT_PART = 0.05
_F_NOCACHE = 48
"""macOS: reads and writes of this file are not cached (fcntl.h)."""


def disk_read(folder: Path, size: int = DISK_BYTES) -> tuple[float | None, str]:
    """Bytes per second, and "" or why that is not known: a folder in memory, without room, not ours to write to.

    Takes ``size`` bytes of the disk for a moment. Caches of a virtual machine's host or
    of the drive itself cannot be dropped; a first read of another file may be slower.
    """
    existing = next((path for path in (folder, *folder.parents) if path.is_dir()), folder)
    try:
        if shutil.disk_usage(existing).free < size * _SPARE:
            return None, f"{existing} has too little room to measure its disk"
        handle, name = tempfile.mkstemp(prefix=".ferrule-disk-", dir=existing)
    except OSError as error:
        return None, f"the disk of {existing} was not measured: {error.strerror}"
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            if sys.platform == "darwin":
                fcntl.fcntl(file.fileno(), _F_NOCACHE, 1)
            block = os.urandom(_BLOCK)
            for _ in range(size // _BLOCK):
                file.write(block)
            os.fsync(file.fileno())
        seconds = _read(name, size)
        if seconds is None:
            return None, f"the disk of {existing} was not measured: its files stay in memory, as in /dev/shm"
        return size // _BLOCK * _BLOCK / seconds, ""
    except OSError as error:
        return None, f"the disk of {existing} was not measured: {error.strerror}"
    finally:
        with suppress(OSError):
            Path(name).unlink()


def _read(name: str, size: int) -> float | None:
    """Seconds for all of the file; None where only memory would be read."""
    with Path(name).open("rb", buffering=0) as file:
        if sys.platform != "darwin":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            resident = _resident(file.fileno(), size)
            if resident is None or resident > _RESIDENT_PART:
                return None
        direct = open_direct(Path(name))
        if direct is None:
            return _time(file.fileno())
    try:
        return _time(direct)
    finally:
        os.close(direct)


def open_direct(file: Path) -> int | None:
    """A descriptor whose reads go past the page cache; None where the file system has no such reads. Raises
    `OSError`."""
    if sys.platform == "darwin":
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.fcntl(descriptor, _F_NOCACHE, 1)
        return descriptor
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None


def _time(handle: int) -> float:
    buffer = mmap.mmap(-1, _BLOCK)  # direct reads need memory that begins at a page
    begin = time.perf_counter()
    while os.readv(handle, [buffer]) > 0:
        pass
    return max(time.perf_counter() - begin, 1e-9)


def _resident(handle: int, size: int) -> float | None:
    """Part of the file that is in memory, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    length = max(size // _BLOCK * _BLOCK, 1)
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), pages)
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
    return None if failed else sum(page & 1 for page in pages) / len(pages)
