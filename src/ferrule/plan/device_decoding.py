"""``python -m ferrule.plan.device_decoding``: does what decoding does whenever it is told, and tells how long it took.

A part of `ferrule.plan.device_together`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from ferrule.plan.device_backend import choose_backend

SECONDS = 0.3
"""Of each kind of work, alone and together."""
_WIDTH, _COUNT, _SMALL = 2048, 12, 300
"""Weights that fit into few caches, 96 MiB in bfloat16; operations that take as long as the clock needs to be exact."""


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
