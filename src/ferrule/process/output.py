"""Output of processes, read as it comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHUNK = 1 << 16

Output = Callable[[int, int, bytes], None]
"""Takes a rank, 1 for its standard output or 2 for its standard error, and bytes."""


def last_line(text: str) -> str:
    """The last line that is not empty of what a program printed; empty where there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


class Outputs:
    """The two streams of each rank; ``take`` gets them piece by piece, whenever `forward` or `drain` is called."""

    def __init__(self, take: Output) -> None:
        self._take = take
        self._streams: dict[int, tuple[int, int]] = {}

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to wait on for more."""
        return tuple(self._streams)

    @contextmanager
    def of(self, rank: int) -> Iterator[tuple[int, int]]:
        """Descriptors for the standard output and error of a process, which has to be started in this context."""
        pipes = (os.pipe(), os.pipe())
        try:
            yield pipes[0][1], pipes[1][1]
        finally:
            for stream, (read, write) in enumerate(pipes, 1):
                os.close(write)
                os.set_blocking(read, False)
                self._streams[read] = (rank, stream)

    def forward(self, fd: int) -> bool:
        """Forward what has come from one of `fds`; False when there is no more for now."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        rank, stream = self._streams[fd]
        if not data:
            del self._streams[fd]
            os.close(fd)
            return False
        self._take(rank, stream, data)
        return True

    def drain(self, rank: int | None = None) -> None:
        """All that has come from one rank, or from all."""
        for fd in [fd for fd, (whose, _) in self._streams.items() if rank in (None, whose)]:
            while self.forward(fd):
                pass

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self._streams.clear()
