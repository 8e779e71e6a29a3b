"""Tokens per second of one stream with speculative decoding and without, of text that repeats itself and of other."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from ferrule.bench.engine.contestants import Ferrule
from ferrule.engine import EngineOptions, SamplingParams
from ferrule.lab import Lab, pair

REPETITIVE = "for name in names:\n    print(name)\n" * 12
OTHER = "Once upon a time there was a cable, and nobody knew how long it was."


@dataclass(frozen=True)
class SpeculationRow:
    """One kind of text. ``plain`` and ``guessing``: tokens per second without and with speculation, medians of the
    rounds, which alternate. ``drafted`` tokens were guessed and computed, and ``accepted`` of them became part of
    answers, of so many ``tokens``. ``same``: answers that were equal with and without."""

    text: str
    plain: float
    guessing: float
    tokens: int
    drafted: int
    accepted: int
    same: int

    @property
    def faster(self) -> float:
        return self.guessing / self.plain


@dataclass(frozen=True)
class SpeculationBench:
    """``delay``: seconds that the cable between the hosts of the ranks adds one way; None: all on this machine."""

    model: str
    delay: float | None
    rounds: int
    rows: tuple[SpeculationRow, ...]


def bench_speculation(
    options: EngineOptions,
    *,
    delay: float | None,
    rounds: int,
    tokens: int,
    say: Callable[[str], None] = lambda line: None,
) -> SpeculationBench:
    """``options``: with the speculation that is measured. With a ``delay`` two hosts of a lab have the ranks, one after
    another. Raises what `ferrule.engine.start` raises, and `LabError` where there can be no lab."""
    return asyncio.run(_measure(options, delay, rounds, tokens, say))


async def _measure(
    options: EngineOptions, delay: float | None, rounds: int, tokens: int, say: Callable[[str], None]
) -> SpeculationBench:
    async with AsyncExitStack() as stack:
        lab = None if delay is None else stack.enter_context(Lab(pair()))
        contestants = []
        for speculate in ("off", options.speculate):
            say(f"loading the model, --speculate {speculate}")
            one = Ferrule(replace(options, speculate=speculate), lab)
            contestants.append(await stack.enter_async_context(one))
        if lab is not None and delay is not None:
            lab.cables[0].shape(delay=delay)
        rows = []
        for text, prompt, temperature in (("repetitive", REPETITIVE, 0.0), ("other", OTHER, 1.0)):
            turns: list[tuple[_Turn, _Turn]] = []
            for number in range(rounds + 1):
                say(f"{text}: round {number} of {rounds}")
                params = SamplingParams(tokens, temperature, seed=number, ignore_eos=True)
                plain, guessing = [await _turn(each, prompt, params) for each in contestants]
                if number:  # the first one fills caches, and measures what a token costs
                    turns.append((plain, guessing))
            rows.append(_row(text, turns))
        return SpeculationBench(contestants[0].engine.name, delay, rounds, tuple(rows))


@dataclass(frozen=True)
class _Turn:
    ids: list[int]
    per_second: float
    accepted: int
    wrong: int


async def _turn(one: Ferrule, prompt: str, params: SamplingParams) -> _Turn:
    found = []
    begin = 0.0
    async for token in one.engine.generate(one.engine.tokenizer.encode(prompt), params):
        begin = begin or time.perf_counter()  # from its first token on
        found.append(token)
    seconds = time.perf_counter() - begin
    ids = [token.id for token in found]
    return _Turn(ids, (len(ids) - 1) / seconds, sum(t.guessed for t in found), sum(t.wrong for t in found))


def _row(text: str, turns: list[tuple[_Turn, _Turn]]) -> SpeculationRow:
    guessing = [each for _, each in turns]
    accepted = sum(each.accepted for each in guessing)
    return SpeculationRow(
        text,
        statistics.median(plain.per_second for plain, _ in turns),
        statistics.median(each.per_second for each in guessing),
        sum(len(each.ids) for each in guessing),
        accepted + sum(each.wrong for each in guessing),
        accepted,
        sum(plain.ids == each.ids for plain, each in turns),
    )
