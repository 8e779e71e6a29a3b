"""The worker process of `ferrule.plan.device.contention`: does what decoding does when told, and reports the seconds.

``python -m ferrule.plan.device.contention_worker COUNT``; it also reports how long the slowest of COUNT cores takes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, repeat

from ferrule.plan.device.backend import choose_backend

SECONDS = 0.3
"""Of each kind of work, alone and together."""
_WIDTH, _COUNT, _SMALL = 2048, 12, 200
"""Weights that fit into few caches, 96 MiB in bfloat16, of which a piece is read at a time; so many operations. Both
take about as long as ranks compute between two sums."""
_REST = 0.01
"""Of all goes, the slowest: what else the machine does."""


def _times(goes: Iterator[Callable[[], object]], end: float, turns: int) -> list[float]:
    """Seconds of one go, in order of size: on average over all who take ``turns`` on a core, and are alike."""
    times: list[float] = []
    while len(times) < turns or time.time() < end:
        work = next(goes)
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
        if turns > 1:
            os.sched_yield()
    rounds = sorted(statistics.mean(times[i : i + turns]) for i in range(0, len(times) - turns + 1, turns))
    return rounds[: max(1, round(len(rounds) * (1 - _REST)))]


def slowest_of(count: int, times: Sequence[float]) -> float:
    """Of ``count`` draws from the sorted ``times``, the expected greatest."""
    total = len(times)
    return sum(each * (((i + 1) / total) ** count - (i / total) ** count) for i, each in enumerate(times))


def main() -> None:
    """For each line on stdin, a time of day, how many take turns on a core, and which CPUs to keep to: from then on do
    each kind of work, and tell of each the seconds of one go, on average and on the slowest of COUNT cores. Who has no
    turns stays awake as long and tells nothing."""
    count = int(sys.argv[1])
    backend = choose_backend("cpu", 1)
    dtype = "bf16" if "bf16" in backend.dtypes else backend.dtypes[0]
    reading = cycle([backend.linear(1, _WIDTH, _WIDTH, dtype) for _ in range(_COUNT)])
    small = backend.small()

    def start_operations() -> None:
        for _ in range(_SMALL):
            small()

    for _ in range(_COUNT):
        next(reading)()
    for line in sys.stdin:
        start, turns, *cpus = line.split()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, map(int, cpus))
        end = float(start)
        told: list[float] = []
        for goes in (reading, repeat(start_operations)):
            time.sleep(max(0.0, end - time.time()))
            end += SECONDS
            if int(turns):
                times = _times(goes, end, int(turns))
                told += slowest_of(1, times), slowest_of(count, times)
            while time.time() < end:
                os.sched_yield()
        sys.stdout.write(" ".join(map(repr, told)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
