"""vLLM on two emulated hosts, with its tensors over the fabric and over gloo, its stock transport, in one run."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from ferrule.engine import EngineOptions, SamplingParams
from ferrule.engine.guests.engine import GuestEngine
from ferrule.engine.guests.start import start_guest
from ferrule.engine.guests.vllm.guest import VllmGuest
from ferrule.lab import Lab, pair

PROMPT = 32
FIRST_ID = 300
"""Prompts are random ids from here on: below are characters and marks in many vocabularies."""
TENSORS, GLOO = 0, 1
"""Cables: gloo is told the second one, with and without the fabric, which is told the first. So what goes over each is
counted on its own interface."""
_COUNT_SECONDS = 30.0


@dataclass(frozen=True)
class VllmRow:
    """``transport``: of tensors, ``fabric`` or ``gloo``. ``tokens_s``: of all streams together, median of the rounds.
    Bytes are of both directions, for each token: over the fabric's cable, with vLLM's own messages, and over gloo's."""

    transport: str
    concurrency: int
    tokens_s: float
    tokens_s_min: float
    tokens_s_max: float
    fabric_bytes: float
    gloo_bytes: float


def bench_vllm(
    options: EngineOptions,
    *,
    rate: float,
    delay: float,
    streams: Sequence[int],
    rounds: int,
    tokens: int,
    say: Callable[[str], None] = lambda line: None,
) -> list[VllmRow]:
    """One rank on each of two hosts, or as many more as ``options`` ask for, joined by two cables of ``rate`` bits per
    second and ``delay`` seconds. Raises what `start_guest` raises, and `LabError` where there can be no lab."""
    with Lab(pair(cables=2).shaped(rate=rate, delay=delay)) as lab, _fabric_on(f"cable{TENSORS}"):
        return asyncio.run(_measure(lab, options, streams, rounds, tokens, say))


async def _measure(
    lab: Lab,
    options: EngineOptions,
    streams: Sequence[int],
    rounds: int,
    tokens: int,
    say: Callable[[str], None],
) -> list[VllmRow]:
    found = []
    for transport in ("gloo", "fabric"):
        say(f"starting vLLM over {transport}")
        engine = await start_guest(VllmGuest(stock=transport == "gloo"), options, lab=lab)
        try:
            await _turn(engine, 1, tokens, 0)
            for count in streams:
                before, speeds = _sent(lab), []
                for number in range(rounds):
                    say(f"{transport}, {count} at once, round {number + 1} of {rounds}")
                    speeds.append(await _turn(engine, count, tokens, 1 + number))
                made = rounds * count * tokens
                over = [(now - then) / made for now, then in zip(_sent(lab), before, strict=True)]
                found.append(
                    VllmRow(
                        transport, count, statistics.median(speeds), min(speeds), max(speeds), over[TENSORS], over[GLOO]
                    )
                )
        finally:
            await engine.close()
    return found


async def _turn(engine: GuestEngine, streams: int, tokens: int, seed: int) -> float:
    """Tokens per second of so many answers at once, each to a prompt that was never there before."""
    drawn = random.Random(f"{streams} {seed}")
    low = min(FIRST_ID, engine.vocab_size // 2)
    prompts = [[drawn.randrange(low, engine.vocab_size) for _ in range(PROMPT)] for _ in range(streams)]
    begin = time.perf_counter()
    counts = await asyncio.gather(*(_answer(engine, prompt, tokens) for prompt in prompts))
    return sum(counts) / (time.perf_counter() - begin)


async def _answer(engine: GuestEngine, prompt: list[int], tokens: int) -> int:
    async with aclosing(engine.generate(prompt, SamplingParams(tokens, 0.0, ignore_eos=True))) as stream:
        return sum([1 async for _ in stream])


def _sent(lab: Lab) -> list[int]:
    """Bytes that both hosts have sent over each cable."""
    return [sum(_interface_bytes(lab, host, cable.interface) for host in cable.hosts) for cable in lab.cables]


def _interface_bytes(lab: Lab, host: int, name: str) -> int:
    command = lab.command(host, ["cat", f"/sys/class/net/{name}/statistics/tx_bytes"])
    return int(subprocess.run(command, capture_output=True, timeout=_COUNT_SECONDS, check=True).stdout)


@contextmanager
def _fabric_on(interface: str) -> Iterator[None]:
    """The fabric uses that interface alone meanwhile."""
    before = os.environ.get("FERRULE_INTERFACES")
    os.environ["FERRULE_INTERFACES"] = interface
    try:
        yield
    finally:
        if before is None:
            del os.environ["FERRULE_INTERFACES"]
        else:
            os.environ["FERRULE_INTERFACES"] = before
