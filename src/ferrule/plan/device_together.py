"""How much of its speed a core keeps while all cores of this machine compute.

Cores share memory, caches, and in virtual machines often the execution units of one core. Processes of one thread do
what decoding does, one alone and as many as there are cores, in turns. The part run by itself is
``python -m ferrule.plan.device_together``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ferrule.cluster import usable_cores
from ferrule.errors import PlanError
from ferrule.plan.device_backend import choose_backend

SECONDS = 0.3
"""Of each kind of work, alone and together."""
_WIDTH, _COUNT, _SMALL = 2048, 12, 300
"""Weights that fit into few caches, 96 MiB in bfloat16; operations that take as long as the clock needs to be exact."""


class CoresTogether:
    """Measures it, as often as asked: processes that wait in between."""

    def __init__(self, cores: int | None = None) -> None:
        self._count = usable_cores() if cores is None else cores
        self._stack = ExitStack()
        self._workers: list[_Worker] = []

    def __enter__(self) -> CoresTogether:
        with ExitStack() as stack:
            if self._count > 1:
                self._workers = [stack.enter_context(_Worker()) for _ in range(self._count)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self) -> float:
        """From 0 to 1, in about a second; 1 where there is one core. Raises `PlanError`."""
        if not self._workers:
            return 1.0
        alone = _work(self._workers[:1])
        together = _work(self._workers)
        return min(1.0, statistics.geometric_mean(a / b for a, b in zip(alone, together, strict=True)))


def _work(workers: Sequence[_Worker]) -> list[float]:
    """Seconds of each kind of work, on average over the ``workers``."""
    start = time.time() + 0.02
    for worker in workers:
        worker.tell(start)
    return [statistics.mean(times) for times in zip(*(worker.answer() for worker in workers), strict=True)]


class _Worker:
    def __enter__(self) -> _Worker:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ferrule.plan.device_together"],
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
        line = self._process.stdout.readline()
        try:
            return [float(word) for word in line.split()] if line else self._ended()
        except ValueError as error:
            raise PlanError(f"a process that measures this machine's cores said {line!r}") from error

    def _ended(self) -> list[float]:
        raise PlanError("a process that measures this machine's cores has ended")


def _median(work: Callable[[], object], end: float) -> float:
    times: list[float] = []
    while not times or time.time() < end:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """For each time of day on stdin: from then on do each kind of work, and tell the median seconds of one go."""
    backend = choose_backend("cpu", 1)
    dtype = "bf16" if "bf16" in backend.dtypes else backend.dtypes[0]
    products = [backend.linear(1, _WIDTH, _WIDTH, dtype) for _ in range(_COUNT)]
    small = backend.small()

    def read() -> None:
        for product in products:
            product()

    def start_operations() -> None:
        for _ in range(_SMALL):
            small()

    read()
    for line in sys.stdin:
        start = float(line)
        time.sleep(max(0.0, start - time.time()))
        middle = start + SECONDS
        reading = _median(read, middle)
        time.sleep(max(0.0, middle - time.time()))
        sys.stdout.write(f"{reading} {_median(start_operations, middle + SECONDS)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
