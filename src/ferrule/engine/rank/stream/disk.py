"""The way in which a file is read fastest: through the page cache or past it, as measured."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ferrule._native import read_rate
from ferrule.plan.device.disk import open_direct

PAGE = 4096
"""Where matrices begin: what is read past the page cache is whole pages (native/src/step/stream.h)."""
READERS = 4
"""Threads that read at once: drives are fastest with several requests."""
SAMPLE = 64 << 20
"""Bytes that are read to measure."""
_CACHED_WORTH = 1.1
"""Reading through the page cache must be so many times as fast: it takes memory, and the processor's time."""


def whole_pages(size: int) -> int:
    """Bytes that are read for ``size`` of them."""
    return -(-size // PAGE) * PAGE


def open_fastest(file: Path, size: int) -> tuple[int, float, str]:
    """A descriptor, bytes per second by it, and how that reads: "past the page cache" or "through the page cache".
    Raises `OSError`."""
    cached, direct = os.open(file, os.O_RDONLY | os.O_CLOEXEC), open_direct(file)
    if direct is None:
        return cached, rate(cached, 0, size), "through the page cache"
    half = min(SAMPLE, size // 2) // PAGE * PAGE  # other bytes: reads leave what they read in caches
    of_direct, of_cached = rate(direct, 0, half), rate(cached, half, size)
    if of_cached > of_direct * _CACHED_WORTH:
        os.close(direct)
        return cached, of_cached, "through the page cache"
    os.close(cached)
    return direct, of_direct, "past the page cache"


def rate(descriptor: int, first: int, last: int, most: int = SAMPLE) -> float:
    """Bytes per second of `READERS` threads that read from ``first`` on, whole pages, ``most`` bytes at most."""
    last = max(min(last, first + most), first + PAGE)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, first, last - first, os.POSIX_FADV_DONTNEED)

    try:
        return read_rate(descriptor, READERS, first, last - first)
    except RuntimeError as error:
        raise OSError(errno.EIO, str(error)) from None
