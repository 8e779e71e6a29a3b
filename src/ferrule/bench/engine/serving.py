"""Engines behind the OpenAI API: servers that are started for the benchmark, and streams that ask them all at once."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import httpx

from ferrule.bench.engine.contestants import PROMPT, WAIT
from ferrule.bench.engine.rows import Turn, prefill_turn
from ferrule.config import current_values
from ferrule.errors import EngineError
from ferrule.launch import LocalLauncher

FIRST_ID = 300
"""Prompts are random ids from here on: below are characters and marks in many vocabularies."""
SHARED, BEHIND = 2000, 20
"""Tokens that prompts have in common, and those behind them."""
AT_PACE = 16
"""Events after which a stream is measured."""


class Server:
    """A server in a process of its own, on a free port of loopback. ``command``: with ``{port}`` where that belongs."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.logs = Path(tempfile.mkdtemp(prefix="ferrule-bench-"))
        self.command = [each.replace("{port}", str(port)) for each in command]
        self.launcher = LocalLauncher(self.command, 1, env=env, output=self.logs)

    async def __aenter__(self) -> Server:
        self.launcher.start()
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=0)
        self.client = httpx.AsyncClient(base_url=self.url, timeout=WAIT, limits=limits)
        try:
            self.model = await self._ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self.launcher.stop()
        shutil.rmtree(self.logs, ignore_errors=True)

    async def _ready(self) -> str:
        """The model's name once the server has loaded it."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                health, models = await self.client.get("/health"), await self.client.get("/v1/models")
                if health.is_success and models.is_success:
                    return str(models.json()["data"][0]["id"])
            except httpx.TransportError:
                pass
            if self.launcher.poll() != (None,):
                break
            await asyncio.sleep(0.2)
        said = [log.read_text(errors="replace").splitlines()[-3:] for log in sorted(self.logs.iterdir())]
        raise EngineError(f"the server {self.command[0]} is not ready; its last words: {said}")

    async def turn(self, streams: int, prompt: int, tokens: int, vocabulary: int, seed: int) -> Turn:
        """``streams`` requests at once, each with a prompt of its own that no cache knows."""
        generator = random.Random(seed)
        low = min(FIRST_ID, vocabulary // 2)
        prompts = [[generator.randrange(low, vocabulary) for _ in range(prompt)] for _ in range(streams)]
        begin = time.perf_counter()
        answers = await asyncio.gather(*(self._ask(each, tokens) for each in prompts))
        end = max(times[-1] for times in answers)
        return Turn(
            streams * tokens / (end - begin),
            tuple(times[1] - times[0] for times in answers),
            tuple(after - before for times in answers for before, after in pairwise(times[1:])),
        )

    async def alike(self, vocabulary: int, seed: int) -> tuple[Turn, Turn]:
        """A prompt that no cache knows, and then another one that begins with the same `SHARED` tokens."""
        generator, low = random.Random(seed), min(FIRST_ID, vocabulary // 2)
        shared, *own = (
            [generator.randrange(low, vocabulary) for _ in range(count)] for count in (SHARED, BEHIND, BEHIND)
        )
        first, second = [await self._ask(shared + each, 1) for each in own]
        count = SHARED + BEHIND
        return prefill_turn(count, first[1] - first[0]), prefill_turn(count, second[1] - second[0])

    async def beside(self, streams: int, prompt: int, tokens: int, vocabulary: int, seed: int) -> tuple[Turn, Turn]:
        """``streams`` that answer: their gaps for so many ``tokens`` of each, and then while two prompts of ``prompt``
        tokens come, one after the other, whose first tokens are the second turn's."""
        generator, low = random.Random(seed), min(FIRST_ID, vocabulary // 2)
        times: list[list[float]] = [[] for _ in range(streams)]

        def some(count: int) -> list[int]:
            return [generator.randrange(low, vocabulary) for _ in range(count)]

        async def until(count: int) -> float:
            while any(len(each) < count for each in times):
                for answer in answers:
                    if answer.done():
                        await answer
                        raise EngineError(f"{self.url}: a stream ended before it was measured")
                await asyncio.sleep(0.01)
            return time.perf_counter()

        answers = [asyncio.create_task(self._ask(some(PROMPT), -1, each)) for each in times]
        try:
            begun = await until(AT_PACE)
            alone = await until(AT_PACE + tokens)
            first = []
            for _ in range(2):
                asked = await self._ask(some(prompt), 1)
                first.append(asked[1] - asked[0])
            ended = time.perf_counter()
            if any(answer.done() for answer in answers):
                raise EngineError(f"{self.url}: streams ended before {prompt} tokens of a prompt were computed")
        finally:
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
        return _window(times, begun, alone), _window(times, alone, ended, tuple(first))

    async def _ask(self, prompt: list[int], tokens: int, times: list[float] | None = None) -> list[float]:
        """Time of the request, and ``times`` of its events."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        times = [] if times is None else times
        times.append(time.perf_counter())
        async with self.client.stream("POST", "/v1/completions", json=body) as response:
            if not response.is_success:
                raise EngineError(f"{self.url}: {response.status_code} {(await response.aread())[:300]!r}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    times.append(time.perf_counter())
        if len(times) < 2:
            raise EngineError(f"{self.url} answered without a token")
        return times


def _window(times: Sequence[Sequence[float]], begin: float, end: float, first: tuple[float, ...] = ()) -> Turn:
    """What streams had between two moments, of the ``times`` of their tokens."""
    gaps = tuple(after - before for each in times for before, after in pairwise(each[1:]) if begin <= after <= end)
    return Turn(len(gaps) / (end - begin), first, gaps)


def ferrule_server(serve: Sequence[str], directory: Path, ranks: int, threads: int, weights: str | None) -> Server:
    """``serve``: the command `ferrule serve`."""
    command = [*serve, str(directory), "--here", "--no-self-test"]
    command += ["--no-standby", "--tp", str(ranks), "--threads", str(threads), "--port", "{port}"]
    return Server([*command, *(["--weights", weights] if weights else [])], settings())


def settings() -> dict[str, str]:
    """Variables of a server with this user's settings, but for those of `serve`: without keys and TLS, which a
    measurement does not have."""
    kept = {
        each.setting.variable: "" if each.setting.key.startswith("serve.") or each.source == "default" else each.text
        for each in current_values()
    }
    return kept | {"FERRULE_CONFIG": os.devnull, "FERRULE_KEYS_FILE": f"{os.devnull}/none"}


def llama_server(command: Path, model: Path, threads: int, streams: int) -> Server:
    slots = ["-c", str(1024 * streams), "-np", str(streams), "--threads-http", str(streams + 16)]
    flags = ["-t", str(threads), "--host", "127.0.0.1", "--port", "{port}"]
    return Server([str(command), "-m", str(model), *flags, *slots])


def vllm_server(command: Path, directory: Path, ranks: int, threads: int, streams: int) -> Server:
    flags = ["-tp", str(ranks), "--max-num-seqs", str(streams), "--max-model-len", "1024", "--no-enable-prefix-caching"]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(ranks * threads))
    bound = [cores[rank * threads : (rank + 1) * threads] for rank in range(ranks)]
    env = {
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, each)) for each in bound if each) or "auto",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    return Server([str(command), "serve", str(directory), "--host", "127.0.0.1", "--port", "{port}", *flags], env)
