"""``python -m ferrule.plan.device_decoding COUNT``: does what decoding does whenever it is told, and tells how long it
took, and how long the slowest of COUNT takes who do the same.

A part of `ferrule.plan.device_together`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, repeat

from ferrule.plan.device_backend import choose_backend

SECONDS = 0.3
"""Of each kind of work, alone and together."""
_WIDTH, _COUNT, _SMALL = 2048, 12, 200
"""Weights that fit into few caches, 96 MiB in bfloat16, of which a piece is read at a time; so many operations. Both
take about as long as ranks compute between two sums."""
_REST = 0.01
"""Of all goes, the slowest: what else the machine does."""


def _times(goes: Iterator[Callable[[], object]], end: float) -> list[float]:
    times: list[float] = []
    while not times or time.time() < end:
        work = next(goes)
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return sorted(times)[: max(1, round(len(times) * (1 - _REST)))]


def slowest_of(count: int, times: Sequence[float]) -> float:
    """Of ``count`` draws from the sorted ``times``, the expected greatest."""
    total = len(times)
    return sum(each * (((i + 1) / total) ** count - (i / total) ** count) for i, each in enumerate(times))


def main() -> None:
    """For each time of day on stdin: from then on do each kind of work, and tell of each the seconds of one go, on
    average and of the slowest of COUNT."""
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
        end = float(line)
        told: list[float] = []
        for goes in (reading, repeat(start_operations)):
            time.sleep(max(0.0, end - time.time()))
            end += SECONDS
            times = _times(goes, end)
            told += slowest_of(1, times), slowest_of(count, times)
        sys.stdout.write(" ".join(map(repr, told)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
