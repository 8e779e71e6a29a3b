"""The engines that take turns in `ferrule bench engine`, one sequence at a time."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from ferrule.engine import EngineOptions, SamplingParams, start
from ferrule.errors import EngineError
from ferrule.lab import Lab
from ferrule.launch import LocalLauncher
from ferrule.plan import Plan

PROMPT = 64
"""Tokens of the prompt where only decoding is timed."""
WAIT = 600.0
"""Seconds that a contestant may take for loading or for one turn."""


RUN = 8
"""Tokens: some may come together, so that the time between two tells nothing."""


def seconds_per_token(seconds: Sequence[float]) -> float:
    """The median of the means of runs of tokens, of the seconds that each took."""
    runs = [seconds[start : start + RUN] for start in range(0, len(seconds), RUN)]
    whole = [run for run in runs if len(run) == RUN] or [seconds]
    return statistics.median(statistics.fmean(run) for run in whole)


class Contestant(Protocol):
    async def timed(self, prompt: int, tokens: int) -> list[float]:
        """Generate ``tokens`` tokens after a prompt of ``prompt``; the seconds that each took."""
        ...


class Ferrule:
    """A Ferrule engine, on this machine or on the hosts of a ``lab``; split as the options say, or by a ``plan``."""

    def __init__(self, options: EngineOptions, lab: Lab | None = None, plan: Plan | None = None) -> None:
        self.options, self.lab, self.plan = options, lab, plan

    async def __aenter__(self) -> Ferrule:
        plan = self.plan
        self.engine = await start(self.options, lab=self.lab, choose_plan=None if plan is None else lambda _: plan)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    async def turn(self, tokens: int) -> list[float]:
        """The seconds of each token but the first."""
        return (await self.timed(PROMPT, tokens))[1:]

    async def timed(self, prompt: int, tokens: int) -> list[float]:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        times = [time.perf_counter()]
        async for _ in self.engine.generate(list(range(3, 3 + prompt)), params):
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
        module = [sys.executable, "-m", "ferrule.bench.engine.transformers_rank", str(directory)]
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

    async def timed(self, prompt: int, tokens: int) -> list[float]:
        for ours in self.ours:
            ours.sendall(f"{prompt} {tokens}\n".encode())
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


class LlamaBench:
    """llama.cpp by its own ``llama-bench``, which loads the model (mapped) for each turn. It knows no single tokens."""

    def __init__(self, command: Path, model: Path, threads: int) -> None:
        self.command = [str(command), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json", "--no-warmup"]

    async def __aenter__(self) -> LlamaBench:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def timed(self, prompt: int, tokens: int) -> list[float]:
        if tokens == 1:
            return [prompt / await self._speed("-p", str(prompt), "-n", "0")]
        return [0.0, *[1 / await self._speed("-p", "0", "-n", str(tokens - 1))] * (tokens - 1)]

    async def _speed(self, *what: str) -> float:
        """Tokens per second."""
        running = await asyncio.create_subprocess_exec(
            *self.command, *what, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(running.communicate(), WAIT)
        if running.returncode:
            raise EngineError(f"llama-bench failed: {err.decode(errors='replace').strip().splitlines()[-1:]}")
        return float(json.loads(out)[0]["avg_ts"])
