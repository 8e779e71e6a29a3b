"""One rank of a contestant: does what the benchmark asks for over a socket, and sleeps while others have their turn.

``python -m ferrule.bench.fabric.rank SOCKET OPTIONS``: plays for the library whose `Options` these are (JSON), connects
to the Unix socket SOCKET and says ``rank N``, and behind that ``TRANSPORT=RAILS`` as far as it knows. Each line that
comes is a task, ``OP COUNT DTYPE SAMPLES IMPL TRANSPORT``; the answer is one line: ``ok`` with microseconds per sample
(on rank 0), or ``error`` and a reason. The end of the socket ends the rank. mpi_rank.c speaks the same.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

import msgspec


@dataclass(frozen=True)
class Task:
    op: str
    count: int
    dtype: str
    samples: int
    impl: str
    transport: str

    @classmethod
    def parse(cls, line: str) -> Task:
        op, count, dtype, samples, impl, transport = line.split()
        return cls(op, int(count), dtype, int(samples), impl, transport)

    def __str__(self) -> str:
        return f"{self.op} {self.count} {self.dtype} {self.samples} {self.impl} {self.transport}"


class RawOptions(msgspec.Struct, frozen=True, tag="rank_raw"):
    """``timeout``: seconds of an operation. ``sockets``: a connected descriptor per rank; ``memory``: one of a file of
    zeros to share."""

    timeout: float
    sockets: tuple[int, ...]
    memory: int


class FerruleOptions(msgspec.Struct, frozen=True, tag="rank_ferrule"):
    timeout: float
    transports: tuple[str, ...]


class TorchOptions(msgspec.Struct, frozen=True, tag="rank_torch"):
    """``store``: a file by which the ranks meet."""

    timeout: float
    backend: str
    store: str
    ranks: int


class MlxOptions(msgspec.Struct, frozen=True, tag="rank_mlx"):
    """``backend``: MLX's name for it: ``mpi`` is Ferrule."""

    backend: Literal["ring", "mpi"]


Options = RawOptions | FerruleOptions | TorchOptions | MlxOptions
"""The tag is the module beside this one that plays."""


class Player(Protocol):
    """A rank of some library. `open_player` of a module makes one from the rank's number and its options."""

    def play(self, task: Task) -> list[float]:
        """Microseconds of each sample, as this rank saw them."""
        ...

    def rails(self) -> dict[str, int]:
        """By transport, over how many rails this rank reaches another; empty where that is not known."""
        return {}


def time_calls(calls: Sequence[Callable[[], Any]], samples: int) -> list[float]:
    """Microseconds per call of ``samples`` rounds of ``calls``: native/python/bench/timing.cpp in Python."""
    clock = time.perf_counter_ns
    times = []
    for _ in range(samples):
        begin = clock()
        for call in calls:
            call()
        times.append((clock() - begin) / 1e3 / max(len(calls), 1))
    return times


def main(path: str, text: str) -> None:
    rank = int(os.environ["FERRULE_RANK"])
    options: Options = msgspec.json.decode(text, type=Options)
    module = import_module(f"ferrule.bench.fabric.{options.__struct_config__.tag}")
    open_player: Callable[[int, Options], AbstractContextManager[Player]] = module.open_player
    with open_player(rank, options) as player, socket.socket(socket.AF_UNIX) as control:
        control.connect(path)
        lines = control.makefile("rw")
        found = " ".join(f"{transport}={count}" for transport, count in player.rails().items())
        print(f"rank {rank} {found}", file=lines, flush=True)
        for line in lines:
            try:
                samples = player.play(Task.parse(line))
            except Exception as error:  # noqa: BLE001 - whatever a library raises is its answer
                answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
            else:
                answer = " ".join(["ok", *(f"{sample:.3f}" for sample in samples if rank == 0)])
            print(answer, file=lines, flush=True)
    # All is closed and said; a library such as torch would take seconds to unload.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
