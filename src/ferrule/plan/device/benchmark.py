"""The short benchmark of a device. Runs in a process of its own: ``python -m ferrule.plan.device.benchmark EFFORT``.

It times what a model's layers do: products of one row with weights that are in no cache (how fast weights are read), of
many rows with one weight (operations per second), and the smallest operation (what each costs beside that).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from ferrule.errors import FerruleError
from ferrule.links.power import PowerMeter
from ferrule.plan.device.backend import Backend, choose_backend
from ferrule.plan.device.disk import DISK_BYTES, disk_read

_Rate = Annotated[float, msgspec.Meta(gt=0)]
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_WIDTH = 2048
FEW_ROWS = (1, 8, 64)
"""Of sequences that are served together."""
_SMALL_COPY = 16 << 10
"""Bytes of what ranks exchange for a token."""
_LEAST_MEMORY_PART = 8
"""Arrays take at most such a part of what is free."""


@dataclass(frozen=True)
class Effort:
    """Effort of a benchmark: what is measured, and how long. ``weights``: bytes of arrays that are read, far more than
    caches hold; ``seconds`` for each number; ``rows`` of the products that operations are counted with; ``disk``
    bytes of a file in ``folder``, 0 for none; ``copied``: bytes of a large copy to a device and back; ``dtype`` in
    which reading is measured, as reading costs arithmetic, too, where that is slow."""

    unit: str = "auto"
    threads: int = 1
    dtype: str = "bf16"
    weights: int = 256 << 20
    rows: int = 256
    seconds: float = 0.25
    disk: int = DISK_BYTES
    copied: int = 64 << 20
    folder: str = ""


@dataclass(frozen=True)
class Copies:
    """Copies between the host's pinned memory and a device: bytes per second each way, and ``seconds`` of a small one
    with the wait for it, the slower way."""

    to_device: _Rate
    to_host: _Rate
    seconds: float


@dataclass(frozen=True)
class Figures:
    """Figures that the benchmark found. ``runtime_bytes``, ``eager_seconds``, ``resume_seconds`` and ``at`` (seconds
    since 1970) are added by who ran it. ``copies``: None where the device is the host's processor.
    ``count``: of such devices here, which are taken to be equal; ``unlike``: units of others of that kind, which are
    measured by themselves. ``unified``: their memory is the host's. ``products``: operations per second by type and
    rows, of fewer rows than those of ``flops``; of GPUs only."""

    unit: str
    title: str
    by: str
    memory_free: int
    memory_total: int
    memory_bandwidth: _Rate
    flops: Annotated[Mapping[str, _Rate], msgspec.Meta(min_length=1)]
    launch_seconds: float
    disk_read: float | None = None
    watts_idle: float | None = None
    watts_busy: float | None = None
    notes: tuple[str, ...] = ()
    runtime_bytes: int = 0
    at: float = 0.0
    eager_seconds: float | None = None
    resume_seconds: float = 0.0
    copies: Copies | None = None
    count: int = 1
    unlike: tuple[str, ...] = ()
    unified: bool = False
    products: Mapping[str, Mapping[int, _Rate]] = field(default_factory=dict)


def run(effort: Effort) -> Figures:
    """Measure this machine, in this process. Raises `ConfigError` where ``effort.unit`` is not there."""
    meter = PowerMeter()
    disk, why = disk_read(Path(effort.folder), effort.disk) if effort.disk and effort.folder else (None, "")
    idle = meter.watts()  # the disk hardly counts
    backend = choose_backend(effort.unit, effort.threads)
    free, total = backend.memory()
    dtype = effort.dtype if effort.dtype in backend.dtypes else backend.dtypes[0]
    bandwidth = read_rate(backend, dtype, min(effort.weights, free // _LEAST_MEMORY_PART), effort.seconds)
    meter = PowerMeter()
    flops = {one: product_rate(backend, one, effort.rows, effort.seconds) for one in backend.dtypes}
    busy = meter.watts()
    launch = launch_seconds(backend, effort.seconds)
    copies = copy_rates(backend, effort.copied, effort.seconds)
    products = {} if copies is None else few_rows(backend, effort.seconds)
    notes = [f"memory bandwidth of {dtype} weights, one row at a time, by {backend.by}", *([why] if why else [])]
    if busy is not None:
        notes.append("watts are of the chips, as they tell; the whole machine draws more")
    if products:
        told = ", ".join(f"{rate / 1e12:.3g} with {rows}" for rows, rate in products[dtype].items())
        notes.append(f"10^12 operations per second of {dtype} products by rows: {told}")
    return Figures(
        backend.unit,
        backend.title,
        backend.by,
        free,
        total,
        bandwidth,
        flops,
        launch,
        disk,
        idle,
        busy,
        tuple(notes),
        copies=copies,
        count=backend.count,
        unlike=backend.unlike,
        unified=backend.unified,
        products=products,
    )


def read_rate(backend: Backend, dtype: str, size: int, seconds: float) -> float:
    """Bytes per second that products of one row read of weights of ``size`` bytes in all."""
    one = _WIDTH * _WIDTH * _BYTES[dtype]
    products = [backend.linear(1, _WIDTH, _WIDTH, dtype) for _ in range(max(1, size // one))]

    def read_all() -> None:
        for product in products:
            product()

    return len(products) * one / best_seconds(read_all, backend.wait, seconds)


def product_rate(backend: Backend, dtype: str, rows: int, seconds: float) -> float:
    """Operations per second of products with ``rows`` rows, on a weight as wide as there is time for."""
    width = _WIDTH // 16
    while True:
        product = backend.linear(rows, width, width, dtype)
        took = best_seconds(product, backend.wait, seconds / 8)
        # The next one takes four times as long, and a few of them are needed.
        if width >= _WIDTH * 4 or took * 16 > seconds:
            return 2.0 * rows * width * width / best_seconds(product, backend.wait, seconds)
        width *= 2


def few_rows(backend: Backend, seconds: float) -> dict[str, dict[int, float]]:
    """Operations per second by type and rows; all rows of a type together take about ``seconds``."""
    return {
        dtype: {rows: product_rate(backend, dtype, rows, seconds / len(FEW_ROWS)) for rows in FEW_ROWS}
        for dtype in backend.dtypes
    }


def launch_seconds(backend: Backend, seconds: float) -> float:
    """Of one small operation among many."""
    small = backend.small()
    count = 500

    def many() -> None:
        for _ in range(count):
            small()

    return best_seconds(many, backend.wait, seconds) / count


def copy_rates(backend: Backend, size: int, seconds: float) -> Copies | None:
    """Each way apart: many devices have an engine for each."""
    large, small = backend.copies(size), backend.copies(_SMALL_COPY)
    if large is None or small is None:
        return None
    to_device, to_host = (size / best_seconds(copy, backend.wait, seconds) for copy in large)
    return Copies(to_device, to_host, max(best_seconds(copy, backend.wait, seconds / 4) for copy in small))


def best_seconds(work: Callable[[], object], wait: Callable[[], None], seconds: float) -> float:
    """Of the quickest of as many calls as fit into ``seconds``, and at least two after a first one: what else the
    machine does makes them slower, never quicker."""
    work()
    wait()
    best, end, number = float("inf"), time.perf_counter() + seconds, 0
    while number < 2 or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - begin)
        number += 1
    return max(best, 1e-9)


def main(arguments: list[str]) -> int:
    """The last line on stdout is JSON: the figures."""
    try:
        figures = run(msgspec.json.decode(arguments[0], type=Effort))
    except FerruleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
