"""The limits: a bare socket and bare shared memory between two processes, and a copy inside one."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ferrule import _native
from ferrule.bench.fabric.rank import Player, RawOptions, Task
from ferrule.fabric import DTYPE_BYTES


@contextmanager
def open_player(rank: int, options: RawOptions) -> Iterator[RawPlayer]:
    shared = mmap.mmap(options.memory, _native.raw_shm_bytes())
    yield RawPlayer(rank, options.timeout, options.sockets[rank], np.frombuffer(shared, np.uint8))


class RawPlayer(Player):
    def __init__(self, rank: int, timeout: float, socket: int, memory: np.ndarray) -> None:
        self._starts = rank == 0
        self._timeout = timeout
        self._socket = socket
        self._memory = memory
        self._buffers = np.zeros((2, 0), np.uint8)

    def play(self, task: Task) -> list[float]:
        size = task.count * DTYPE_BYTES[task.dtype]
        if self._buffers.shape[1] != size:
            self._buffers = np.ones((2, size), np.uint8)  # written, so that every page is there
        data, other = (buffer.ctypes.data for buffer in self._buffers)
        rounds, starts, timeout = task.samples, self._starts, self._timeout
        match task.transport:
            case "tcp":
                return _native.raw_tcp_ping_pong(self._socket, data, size, rounds, starts, timeout)
            case "tcp-both":
                return _native.raw_tcp_exchange(self._socket, data, other, size, rounds, timeout)
            case "shm":
                return _native.raw_shm_ping_pong(self._memory.ctypes.data, data, size, rounds, starts, timeout)
        return _native.raw_memcpy(other, data, size, rounds) if starts else []
