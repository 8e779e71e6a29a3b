"""Tokens per second of three ranks that have a core, half of one and a quarter, cut evenly and by --shares 4,2,1.

As root, with two idle cores: `python scripts/uneven_hosts.py [MODEL]` (a random Llama of half a billion parameters).
Quotas are of the kernel's control groups, version 1 or 2, in periods of 5 ms: shorter than a token takes.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ferrule.bench.engine.contestants import Ferrule
from ferrule.bench.random_model import given_or_random
from ferrule.engine import EngineOptions

QUOTAS = (1.0, 0.5, 0.25)
SPEEDS = {"even": (), "by speed": tuple(4 * quota for quota in QUOTAS)}
PERIOD = 5000
ROUNDS, TOKENS = 5, 33


@contextmanager
def limited(pids: Sequence[int]) -> Iterator[None]:
    """Each of ``pids`` in a group of its own with its quota."""
    old = Path("/sys/fs/cgroup/cpu")
    root = old if old.is_dir() else Path("/sys/fs/cgroup")
    if root != old:
        (root / "cgroup.subtree_control").write_text("+cpu")
    groups = [root / f"ferrule-uneven-{pid}" for pid in pids]
    try:
        for group, pid, quota in zip(groups, pids, QUOTAS, strict=True):
            group.mkdir()
            if root == old:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD * quota)))
            else:
                (group / "cpu.max").write_text(f"{int(PERIOD * quota)} {PERIOD}")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group, pid in zip(groups, pids, strict=True):
            if group.is_dir():
                (root / "cgroup.procs").write_text(str(pid))
                group.rmdir()


async def tokens_per_second(directory: Path, shares: tuple[float, ...]) -> float:
    options = EngineOptions(str(directory), tensor=3, shares=shares, threads=1, self_test=False)
    async with Ferrule(options) as contestant:
        await contestant.turn(4)
        with limited([rank.pid for rank in contestant.engine.ranks]):
            turns = [await contestant.turn(TOKENS) for _ in range(ROUNDS)]
    return 1 / min(statistics.median(turn) for turn in turns)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ferrule-uneven-") as scratch:
        model = sys.argv[1] if len(sys.argv) > 1 else None
        directory = given_or_random(model, Path(scratch), print, quick=False)
        found = {how: asyncio.run(tokens_per_second(directory, shares)) for how, shares in SPEEDS.items()}
    for how, speed in found.items():
        print(f"{how:>8}: {speed:.2f} tokens/s")
    print(f"by speed is {found['by speed'] / found['even']:.2f} times as fast as even (to be at least 1.5)")


if __name__ == "__main__":
    main()
