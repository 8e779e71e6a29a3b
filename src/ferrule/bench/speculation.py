"""Tokens per second of one stream with speculative decoding and without, by how much the text repeats itself."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from ferrule.bench.engine.contestants import Ferrule
from ferrule.engine import Constraint, EngineOptions, SamplingParams
from ferrule.lab import Lab, pair

LINE = "for name in names: print(name)"
KINDS = ("repeated", "own", "random")
"""Texts: one line again and again, which a grammar sees to; what the model goes on with after such a prompt, at
temperature 0; and at temperature 1 after another."""


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
        for text in KINDS:
            turns: list[tuple[_Turn, _Turn]] = []
            for number in range(rounds + 1):
                say(f"{text}: round {number} of {rounds}")
                plain, guessing = [await _turn(each, *_asked(text, tokens, number)) for each in contestants]
                if number:  # the first one fills caches, and measures what a token costs
                    turns.append((plain, guessing))
            rows.append(_row(text, turns))
        return SpeculationBench(contestants[0].engine.name, delay, rounds, tuple(rows))


def _asked(text: str, tokens: int, seed: int) -> tuple[str, SamplingParams]:
    """The prompt for a text of `KINDS`."""
    if text == "random":
        return "Once there was a cable, and nobody knew how long it was.", SamplingParams(
            tokens, seed=seed, ignore_eos=True
        )
    # With a line for each token no answer is complete before its last one.
    line = Constraint("regex", f"({re.escape(LINE)}\n){{{tokens}}}") if text == "repeated" else None
    # What a grammar forces is sampled all the same where its log-probability is wanted.
    logprobs = None if line is None else 0
    return f"{LINE}\n" * 12, SamplingParams(tokens, 0.0, ignore_eos=True, constraint=line, logprobs=logprobs)


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
