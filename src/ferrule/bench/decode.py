"""Decode speed of one model: Ferrule on one rank and on several, beside transformers alone and over Gloo.

All contestants are loaded first and then take turns, so that what else the machine does hits them alike. Batch 1,
greedy, the same prompt, the same number of threads per rank.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from ferrule.bench.random_model import given_or_random
from ferrule.engine import EngineOptions, SamplingParams, start
from ferrule.errors import EngineError
from ferrule.lab import Lab
from ferrule.launch import LocalLauncher

PROMPT = 64
"""Tokens of the prompt; its time is not counted."""
WAIT = 600.0
"""Seconds that a contestant may take for loading or for one turn."""


@dataclass(frozen=True)
class DecodeRow:
    """Milliseconds per token of one contestant, over all its turns."""

    model: str
    dtype: str
    impl: str
    ranks: int
    threads: int
    min_ms: float
    median_ms: float
    p99_ms: float
    tokens_per_s: float
    """By the median."""


class Contestant(Protocol):
    async def turn(self, tokens: int) -> list[float]:
        """Generate ``tokens`` tokens; the seconds that each but the first took."""
        ...


class Ferrule:
    """A Ferrule engine, on this machine or on the hosts of a ``lab``."""

    def __init__(self, options: EngineOptions, lab: Lab | None = None) -> None:
        self.options, self.lab = options, lab

    async def __aenter__(self) -> Ferrule:
        self.engine = await start(self.options, lab=self.lab)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    async def turn(self, tokens: int) -> list[float]:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        times = []
        async for _ in self.engine.generate(list(range(3, 3 + PROMPT)), params):
            times.append(time.perf_counter())
        return [after - before for before, after in pairwise(times)]


class Transformers:
    """transformers in processes of its own: alone, or its own tensor parallelism over Gloo."""

    def __init__(self, directory: Path, ranks: int, threads: int) -> None:
        pairs = [socket.socketpair() for _ in range(ranks)]
        self.ours = [ours for ours, _ in pairs]
        theirs = [their for _, their in pairs]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        module = [sys.executable, "-m", "ferrule.bench.transformers_rank", str(directory), str(PROMPT)]
        self.logs = Path(tempfile.mkdtemp(prefix="ferrule-bench-"))
        self.launcher = LocalLauncher(
            lambda rank: [*module, str(theirs[rank].fileno())],
            ranks,
            env={
                "OMP_NUM_THREADS": str(threads),
                "HF_HUB_OFFLINE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
            },
            rank_env=[{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)],
            pass_fds=[[their.fileno()] for their in theirs],
            output=self.logs,
        )
        self.launcher.start()
        for their in theirs:
            their.close()

    async def __aenter__(self) -> Transformers:
        try:
            await self._answers()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.launcher.stop()
        for ours in self.ours:
            ours.close()
        shutil.rmtree(self.logs, ignore_errors=True)

    async def turn(self, tokens: int) -> list[float]:
        for ours in self.ours:
            ours.sendall(f"{tokens}\n".encode())
        return (await self._answers())[0]

    async def _answers(self) -> list[list[float]]:
        """One JSON line from every rank."""

        def read(ours: socket.socket) -> list[float]:
            ours.settimeout(WAIT)
            line = ours.makefile().readline()
            if not line:
                said = [log.read_text(errors="replace").splitlines()[-1:] for log in sorted(self.logs.iterdir())]
                raise EngineError(f"a transformers process of the benchmark ended; the last words of each: {said}")
            times: list[float] = json.loads(line)
            return times

        return list(await asyncio.gather(*(asyncio.to_thread(read, ours) for ours in self.ours)))


async def _measure(
    directory: Path,
    dtype: str,
    ranks: int,
    threads: int,
    rounds: int,
    tokens: int,
    say: Callable[[str], None],
) -> list[DecodeRow]:
    names = [("ferrule", 1), ("ferrule", ranks), ("transformers", 1), ("transformers-tp-gloo", ranks)]
    times: dict[tuple[str, int], list[float]] = {key: [] for key in names}
    async with AsyncExitStack() as stack:
        contestants: dict[tuple[str, int], Contestant] = {}
        for impl, count in names:
            say(f"loading {impl} on {count} rank{'s' if count > 1 else ''}")
            contestant: Ferrule | Transformers
            if impl == "ferrule":
                contestant = Ferrule(EngineOptions(str(directory), tensor=count, threads=threads, self_test=False))
            else:
                contestant = Transformers(directory, count, threads)
            contestants[impl, count] = await stack.enter_async_context(contestant)
        for key in names:
            await contestants[key].turn(4)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for key in names:
                times[key] += await contestants[key].turn(tokens)
    return [_row(directory.resolve().name, dtype, impl, count, threads, times[impl, count]) for impl, count in names]


def _row(name: str, dtype: str, impl: str, ranks: int, threads: int, seconds: list[float]) -> DecodeRow:
    ms = sorted(second * 1e3 for second in seconds)
    median = statistics.median(ms)
    p99 = ms[min(len(ms) - 1, int(0.99 * len(ms)))]
    return DecodeRow(name, dtype, impl, ranks, threads, ms[0], median, p99, 1e3 / median)


def bench_decode(
    *,
    quick: bool = False,
    model: Path | None = None,
    ranks: int = 2,
    threads: int = 1,
    rounds: int = 5,
    tokens: int = 24,
    say: Callable[[str], None] = lambda line: None,
) -> list[DecodeRow]:
    """Measure ``model``, or a random bfloat16 Llama of half a billion parameters (a tiny one with ``quick``).

    ``say`` gets a line about what is happening. Needs memory for two copies of the model for each implementation.
    """
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as scratch:
        directory = given_or_random(model, Path(scratch), say, quick=quick)
        dtype = str(json.loads((directory / "config.json").read_text()).get("dtype", "float32"))
        return asyncio.run(_measure(directory, dtype, ranks, threads, rounds, tokens, say))


def to_json(rows: list[DecodeRow]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=1)
