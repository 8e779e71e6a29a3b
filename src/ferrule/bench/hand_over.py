"""Prompts computed by other ranks: how much of their keys and values goes over while later layers are computed."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from random import Random

from ferrule.engine import EngineOptions, SamplingParams
from ferrule.engine.apart.engine import ApartEngine
from ferrule.engine.apart.start import start_apart
from ferrule.errors import EngineError
from ferrule.lab import Lab, pair

HIDDEN_BAR = 0.8
"""Of `HandOverBench.hidden`."""
JOIN_SECONDS = 120.0
TOLD_SECONDS = 10.0
"""In which the ranks for prompts tell of one that came."""


@dataclass(frozen=True)
class HandOver:
    """Medians of the rounds, in seconds. ``first_token``: from the request to its first token. ``behind``: from the end
    of the last layer's computing to the word that all has come, both by the clock of the rank that sends."""

    first_token: float
    behind: float


@dataclass(frozen=True)
class HandOverBench:
    """``rate``: bits per second of the cable between the hosts of the two groups. ``size``: bytes of a prompt of
    ``tokens``. ``streamed``: each layer as soon as it is computed; ``whole``: all when the prompt is computed."""

    model: str
    rate: float
    tokens: int
    size: int
    rounds: int
    streamed: HandOver
    whole: HandOver

    @property
    def hidden(self) -> float:
        """Part of the time that sending alone takes which is hidden behind computing."""
        return 1.0 - self.streamed.behind / self.whole.behind

    @property
    def sooner(self) -> float:
        """Seconds by which the first token comes sooner."""
        return self.whole.first_token - self.streamed.first_token


def bench_hand_over(
    options: EngineOptions,
    prefill: int,
    *,
    rate: float,
    tokens: int,
    rounds: int,
    say: Callable[[str], None] = lambda line: None,
) -> HandOverBench:
    """Ranks for answers as ``options`` ask for on one host of a lab, and ``prefill`` for prompts on another. Raises
    what `start_apart` raises, `LabError` where there can be no lab, `EngineError` where a prompt does not come whole.
    """
    return asyncio.run(_measure(options, prefill, rate, tokens, rounds, say))


async def _measure(
    options: EngineOptions, prefill: int, rate: float, tokens: int, rounds: int, say: Callable[[str], None]
) -> HandOverBench:
    with Lab(pair()) as lab:
        lab.cables[0].limit(rate)
        say("loading the model twice")
        engine = await start_apart(options, prefill, lab=lab)
        try:
            await engine.joined(JOIN_SECONDS)
            found: dict[bool, list[HandOver]] = {False: [], True: []}
            for number in range(rounds + 1):
                for whole in found:
                    say(f"round {number} of {rounds}, {'whole' if whole else 'streamed'}")
                    one = await _turn(engine, tokens, seed=2 * number + whole, whole=whole)
                    if number:  # the first one warms up
                        found[whole].append(one)
            size = engine.hand_over.size // engine.hand_over.prompts
            return HandOverBench(engine.name, rate, tokens, size, rounds, _median(found[False]), _median(found[True]))
        finally:
            await engine.close()


async def _turn(engine: ApartEngine, tokens: int, *, seed: int, whole: bool) -> HandOver:
    """One prompt that was never there before."""
    engine.whole = whole
    drawn = Random(seed)
    prompt = [drawn.randrange(3, engine.vocab_size) for _ in range(tokens)]
    before = engine.hand_over
    begin = time.perf_counter()
    async with aclosing(engine.generate(prompt, SamplingParams(1, 0.0, ignore_eos=True))) as stream:
        async for _ in stream:
            break
    seconds = time.perf_counter() - begin
    async with asyncio.timeout(TOLD_SECONDS):
        while engine.hand_over.seconds == before.seconds:
            await asyncio.sleep(0.001)
    if engine.hand_over.prompts == before.prompts:
        raise EngineError("a prompt did not come whole from the ranks that compute prompts; see the server's log")
    return HandOver(seconds, engine.hand_over.behind - before.behind)


def _median(turns: list[HandOver]) -> HandOver:
    return HandOver(
        statistics.median(each.first_token for each in turns), statistics.median(each.behind for each in turns)
    )
