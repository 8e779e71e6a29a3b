"""Tokens per second of a model that is larger than its ranks' memory, beside what the disk allows."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ferrule.engine import EngineOptions, LocalEngine, SamplingParams, start
from ferrule.engine.host.prepare import prepared
from ferrule.engine.options import AS_NEEDED
from ferrule.engine.rank.stream.disk import open_fastest, rate
from ferrule.engine.rank.stream.weights import folder_of
from ferrule.errors import EngineError
from ferrule.plan.cost.memory import weight_bytes
from ferrule.process.control_group import ControlGroup, memory_limit

PROMPT = 32
CONTEXT = 1024
"""Tokens for which caches have room in a control group."""
_MOST = 1 << 30
"""Bytes that are read to measure the disk."""
BAR = 0.7
"""Of `StreamingBench.part`."""


@dataclass(frozen=True)
class StreamingBench:
    """Bytes of all ranks, which are on one machine: ``weights``, and those that tokens ``read``. ``room``: for weights
    of each rank, 0: chosen by the ranks. ``disk``: bytes per second, of the ranks' own files, by as many reads at once
    as they have; ``how``: read so. ``waited``: part of the time in which the driver's rank waited for its disk.
    ``limit``: of the control group of all ranks, 0: they have none; ``peak``: what it had at once."""

    model: str
    ranks: int
    weights: int
    room: int
    read: float
    disk: float
    how: str
    tokens_per_s: float
    waited: float
    limit: int = 0
    peak: int = 0

    @property
    def needed(self) -> float:
        """Bytes that have no room: as many at least are read for a token."""
        return self.weights - self.ranks * self.room if self.room else self.read

    @property
    def bound(self) -> float:
        """Tokens per second that the disk allows."""
        return self.disk / self.needed

    @property
    def part(self) -> float:
        """Of what the disk allows."""
        return self.tokens_per_s / self.bound


async def bench_streaming(
    options: EngineOptions, folder: Path | None, *, times: float, rounds: int, tokens: int, limited: bool = False
) -> StreamingBench:
    """One stream. ``options.stream_weights``: None for so much that a rank's weights are ``times`` that. ``folder``:
    whose disk is read. ``limited``: the ranks choose how much, and the kernel holds them to as much for all that they
    have (`ControlGroup`). Raises what `ferrule.engine.start` raises, `EngineError` where everything has room, and
    `ConfigError` where there can be no group."""
    with kept_in(folder), ExitStack() as stack:
        model = await prepared(options)
        by_rank = weight_bytes(model.spec.in_engine, model.plan)
        limit = round(sum(by_rank) / times) if limited else 0
        group = stack.enter_context(ControlGroup(memory_limit(limit))) if limited else None
        if limited:
            options = replace(options, stream_weights=AS_NEEDED, max_context=max(CONTEXT, PROMPT + tokens))
            _out_of_page_cache()
        elif options.stream_weights is None:
            options = replace(options, stream_weights=round(max(by_rank) / times))
        with nullcontext() if group is None else group.inside():
            engine = await start(replace(options, self_test=False, prefix_cache=False))
        try:
            seconds, read, waited = await _timed(engine, rounds, tokens)
        finally:
            await engine.close()
        peak = 0 if group is None else group.peak
        disk, how = await asyncio.to_thread(disk_of, len(by_rank))
    room, ranks = options.stream_weights or 0, len(by_rank)
    tokens_per_s = 1 / statistics.median(seconds)
    measured = disk, how, tokens_per_s, waited
    return StreamingBench(engine.name, ranks, sum(by_rank), room, read * ranks, *measured, limit, peak)


async def _timed(engine: LocalEngine, rounds: int, tokens: int) -> tuple[list[float], float, float]:
    """Seconds of each token but the first ones; bytes that the driver's rank read for one, and the part of the time in
    which it waited."""
    times: list[float] = []
    read = waited = passed = 0.0
    for turn in range(rounds + 1):
        before = engine.health().streamed
        params = SamplingParams(tokens, temperature=0.0, ignore_eos=True)
        began = time.perf_counter()
        async with aclosing(engine.generate(range(3, 3 + PROMPT), params)) as stream:
            ends = [time.perf_counter() async for _ in stream]
        after = engine.health().streamed
        if after is None:
            raise EngineError(f"{engine.name} has room in memory: take a larger --times or a smaller --memory")
        if turn and before is not None:  # the first one fills caches
            times += [end - begin for begin, end in pairwise(ends)]
            passed += ends[-1] - began
            read += after.read - before.read
            waited += after.waited - before.waited
    return times, read / (rounds * tokens), waited / passed


def disk_of(ranks: int) -> tuple[float, str]:
    """Bytes per second, and how they are read, of the file that each rank used last, the fastest: all together are no
    faster. It is read a second time, as what is streamed is read again and again: drives and hosts of virtual machines
    have caches of their own."""
    found = []
    for rank in range(ranks):
        file = max(folder_of(rank).glob("*/weights"), key=lambda each: each.parent.stat().st_mtime)
        descriptor, _, how = open_fastest(file, file.stat().st_size)
        rates = [rate(descriptor, 0, file.stat().st_size, most=_MOST) for _ in range(2)]
        os.close(descriptor)
        found.append((max(rates), how))
    return max(found)


def _out_of_page_cache() -> None:
    """What earlier ranks have left there of their files: no group of now would count it."""
    for file in folder_of(0).parent.glob("*/*/weights"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def kept_in(folder: Path | None) -> Iterator[None]:
    """Ranks that are started have their files in ``folder``."""
    before = os.environ.get("FERRULE_MODEL_CACHE")
    if folder is not None:
        os.environ["FERRULE_MODEL_CACHE"] = str(folder.expanduser().absolute())
    try:
        yield
    finally:
        if folder is not None:
            os.environ.pop("FERRULE_MODEL_CACHE")
            if before is not None:
                os.environ["FERRULE_MODEL_CACHE"] = before
