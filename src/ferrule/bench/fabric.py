"""Measure collectives of this machine's ranks beside other libraries, all in one run."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from ferrule.cluster import LocalLauncher
from ferrule.errors import ConfigError, FabricError

DEFAULT_SIZES = (64, 8 << 10, 32 << 10, 2 << 20, 64 << 20)
_JOB_SECONDS = 300.0


class Row(TypedDict):
    """One line of the result. Times in microseconds per call, as rank 0 saw them."""

    op: str
    bytes: int
    dtype: str
    transport: str
    ranks: int
    impl: str
    min_us: float
    median_us: float
    p99_us: float


@dataclass(frozen=True)
class FabricBench:
    """``raw``: per size the unbeatable minimum in microseconds of a TCP one-way trip and of a copy in memory."""

    rows: tuple[Row, ...]
    raw: dict[int, dict[str, float]]
    notes: tuple[str, ...]

    def find(self, impl: str, transport: str, size: int) -> Row | None:
        for row in self.rows:
            if (row["impl"], row["transport"], row["bytes"]) == (impl, transport, size):
                return row
        return None


def bench_fabric(
    *,
    ranks: int = 2,
    transports: Sequence[str] = ("shm", "tcp"),
    sizes: Sequence[int] = DEFAULT_SIZES,
    quick: bool = False,
) -> FabricBench:
    """All-reduce float32 arrays of ``sizes`` bytes over each transport, and over Gloo where torch is installed.

    The ranks are pinned to one CPU each as far as there are enough. Raises `FabricError` when a rank fails.
    """
    if ranks < 2:
        raise ConfigError(f"a benchmark between ranks needs at least 2 of them, not {ranks}")
    bad = [size for size in sizes if size < 4 or size % 4]
    if bad:
        raise ConfigError(f"sizes are whole float32 numbers: {bad[0]} bytes is not a multiple of 4")
    gloo = find_spec("torch") is not None
    notes = [] if gloo else ["torch is not installed: no Gloo to compare with"]
    cpus = _cpus(ranks)
    if cpus is None:
        notes.append(f"{ranks} ranks do not get a core each here: expect waiting")
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as folder:
        config = {
            "transports": list(transports),
            "sizes": list(sizes),
            "rounds": {size: _rounds(size, quick) for size in sizes},
            "gloo": gloo,
            "timeout": 60.0,
            "store": f"{folder}/store",
            "out": f"{folder}/out.json",
        }
        out = Path(folder) / "out.json"
        config_path = Path(folder) / "config.json"
        config_path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "ferrule.bench.fabric_rank", str(config_path)]
        env = {"OMP_NUM_THREADS": "1"}
        with LocalLauncher(command, ranks, env=env, cpus=cpus, output=Path(folder) / "logs") as launcher:
            try:
                result = launcher.wait(_JOB_SECONDS)
            except TimeoutError as error:
                raise FabricError(f"the benchmark did not end: {error}") from error
        if result.first_failed is not None:
            log = (Path(folder) / "logs" / f"rank-{result.first_failed}.log").read_text(errors="replace")
            raise FabricError(f"rank {result.first_failed} of the benchmark failed:\n{log[-2000:]}")
        found = json.loads(out.read_text())
    raw = {int(size): limits for size, limits in found["raw"].items()}
    return FabricBench(tuple(found["rows"]), raw, tuple(notes))


def _rounds(size: int, quick: bool) -> int:
    rounds = 40 if size <= 1 << 16 else 20
    return rounds if quick else rounds * 3


def _cpus(ranks: int) -> list[list[int]] | None:
    """One CPU per rank, if there are as many."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    available = sorted(os.sched_getaffinity(0))
    return [[cpu] for cpu in available[:ranks]] if len(available) >= ranks else None
