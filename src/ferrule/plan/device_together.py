"""How much of its speed a core keeps while all cores of this machine compute and wait for each other.

Cores share memory, caches, and in virtual machines often the execution units of one core; and of several ranks that
meet after each part of a layer, all wait for the one that was slowest this time. Processes of one thread do
what decoding does (`ferrule.plan.device_decoding`), one alone and as many as there are cores, in turns.
"""

from __future__ import annotations

import select
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from ferrule.cluster import usable_cores
from ferrule.errors import PlanError

ANSWER_SECONDS = 60.0
"""For a process that is to work for half a second; the first time it imports what it needs."""


class CoresTogether:
    """Measures it, as often as asked: processes that wait in between."""

    def __init__(self, cores: int | None = None) -> None:
        self._count = usable_cores() if cores is None else cores
        self._stack = ExitStack()
        self._workers: list[_Worker] = []

    def __enter__(self) -> CoresTogether:
        with ExitStack() as stack:
            if self._count > 1:
                self._workers = [stack.enter_context(_Worker(self._count)) for _ in range(self._count)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self) -> float:
        """From 0 to 1, in about a second; 1 where there is one core. Raises `PlanError`."""
        if not self._workers:
            return 1.0
        alone = _work(self._workers[:1])[::2]
        slowest = _work(self._workers)[1::2]
        return min(1.0, statistics.geometric_mean(a / b for a, b in zip(alone, slowest, strict=True)))


def _work(workers: Sequence[_Worker]) -> list[float]:
    """Seconds of each kind of work, and of the slowest of all, on average over the ``workers``."""
    start = time.time() + 0.02
    for worker in workers:
        worker.tell(start)
    return [statistics.mean(times) for times in zip(*(worker.answer() for worker in workers), strict=True)]


class _Worker:
    """One of ``count``."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> _Worker:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ferrule.plan.device_decoding", str(self._count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, start: float) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{start}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PlanError(f"a process that measures this machine's cores has ended: {error}") from error

    def answer(self) -> list[float]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise PlanError(f"a process that measures this machine's cores has said nothing for {ANSWER_SECONDS:g} s")
        line = self._process.stdout.readline()
        try:
            return [float(word) for word in line.split()] if line else self._ended()
        except ValueError as error:
            raise PlanError(f"a process that measures this machine's cores said {line!r}") from error

    def _ended(self) -> list[float]:
        raise PlanError("a process that measures this machine's cores has ended")
