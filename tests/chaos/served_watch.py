"""Watch the processes of a served model: their memory and descriptors over time, and what its ranks keep on disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median

import psutil
from served_server import BLOCKS, Served

STEP_SECONDS = 2.0
NOISE = 12 << 20
"""Bytes by which an allocator may differ between two moments of the same load."""
LEAK = 24 << 20
"""Bytes per hour that memory may grow: less than 1 KiB per answer at ten answers a second."""
SPARE_FILES = 8
"""Descriptors of connections that are just being opened or closed."""


@dataclass(frozen=True)
class Sample:
    """``at``: seconds. ``memory``: resident bytes; ``files``: open descriptors."""

    at: float
    memory: int
    files: int


@dataclass
class Watched:
    """``samples``: by the name of a process, from when everything had been asked once. ``ended``: who did."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)

    async def watch(self, served: Served, seconds: float, say: Callable[[str], None]) -> None:
        """For so long. Says each minute how large all are."""
        processes = {"server": served.server(), **{f"rank {rank}": one for rank, one in served.ranks().items()}}
        begun = told = time.monotonic()
        while (now := time.monotonic()) < begun + seconds:
            for name, process in processes.items():
                try:
                    self.samples.setdefault(name, []).append(_sample(process, now - begun))
                except psutil.NoSuchProcess:
                    self.ended.append(name)
            if self.ended:
                return
            if now > told + 60:
                told = now
                sizes = (f"{name} {each[-1].memory >> 20} MiB" for name, each in self.samples.items())
                say(f"after {(now - begun) / 60:.0f} min: {', '.join(sizes)}")
            await asyncio.sleep(STEP_SECONDS)

    def growth(self, name: str) -> tuple[float, float]:
        """Bytes that a process has grown, by the line through its samples; and may have."""
        samples = self.samples[name]
        passed = samples[-1].at - samples[0].at
        slope = linear_regression([each.at for each in samples], [each.memory for each in samples]).slope
        return slope * passed, max(NOISE, LEAK * passed / 3600)

    def problems(self) -> list[str]:
        found = [f"{name} has ended: a fault, or a machine that was too busy" for name in self.ended]
        for name, samples in self.samples.items():
            grown, most = self.growth(name)
            if grown > most:
                found.append(f"{name} has grown by {grown / 2**20:.1f} MiB, where {most / 2**20:.1f} MiB are noise")
            half = len(samples) // 2
            files = [median(each.files for each in part) for part in (samples[:half], samples[half:])]
            if files[1] > files[0] + SPARE_FILES:
                found.append(f"{name} had {files[0]:.0f} descriptors open, and then {files[1]:.0f}")
        return found


def _sample(process: psutil.Process, at: float) -> Sample:
    with process.oneshot():
        return Sample(at, process.memory_info().rss, process.num_fds())


def blocks_on_disk(folder: Path, rank: int) -> set[str]:
    """Keys of the blocks of the prefix cache that a rank has there."""
    return {file.name for file in folder.glob(BLOCKS.format(rank))}
