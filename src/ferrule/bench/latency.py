"""Tokens per second of a model that is split over two emulated hosts, by the latency of the cable between them.

A tensor parallel token needs an exchange after each half of each layer, one after another: each costs the cable's
latency. A pipeline's token crosses the cable once for each stage. So one split wins on a quick cable and the other on
a slow one, and where the lines cross follows from arithmetic: `predict`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import psutil

from ferrule.bench.engine.contestants import Ferrule
from ferrule.bench.random_model import given_or_random
from ferrule.engine import EngineOptions
from ferrule.engine.source import DEMO
from ferrule.errors import ConfigError
from ferrule.lab import Lab, pair
from ferrule.model import read_model

Split = Literal["tensor", "pipeline"]
SPLITS: tuple[Split, ...] = ("tensor", "pipeline")

DELAYS = (3e-6, 10e-6, 50e-6, 300e-6, 1e-3, 3e-3)
"""Seconds, one way."""

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class LatencyRow:
    """Milliseconds per token of one split, when the cable adds ``delay`` seconds one way; ``predicted_ms``: `predict`.

    ``median_ms`` is the median token of the turn that was disturbed least: ranks that go in step feel what else runs
    on any of their cores. ``all_ms``: the median of all turns together. ``messages``: how many messages of a token
    follow one upon another over the cable.
    """

    split: Split
    delay: float
    messages: int
    median_ms: float
    all_ms: float
    predicted_ms: float
    tokens_per_s: float
    """By the median."""

    @property
    def error(self) -> float:
        """Of the prediction, in parts of what was measured."""
        return self.predicted_ms / self.median_ms - 1


@dataclass(frozen=True)
class LatencyBench:
    """``alone_ms``: milliseconds per token of one rank that has the whole model. ``busy``: the part of this machine's
    processors that others used before."""

    model: str
    layers: int
    alone_ms: float
    rows: tuple[LatencyRow, ...]
    busy: float = 0.0

    def of(self, split: Split) -> list[LatencyRow]:
        """In the order of the delay; the first has none."""
        return sorted((row for row in self.rows if row.split == split), key=lambda row: row.delay)

    @property
    def crossover(self) -> float | None:
        """The delay in seconds at which both splits are as fast by the arithmetic; None: one is faster at any."""
        tensor, pipeline = (self.of(split)[0] for split in SPLITS)
        gap = (pipeline.median_ms - tensor.median_ms) / 1e3
        return gap / (tensor.messages - pipeline.messages) if gap > 0 else None


def messages_per_token(split: Split, layers: int) -> int:
    """Number of messages in a row over the cable that one token costs on two hosts.

    Tensor: the driver announces the step, and each rank waits for the other's half after the attention and after the
    feed-forward part of each layer, and once for the logits. The announcement makes one rank late by one message, so
    the other waits for two messages at every second exchange: 2 * ceil(exchanges / 2). Pipeline: the driver, which is
    on the last stage, announces the step to the first one, which sends its activations back.
    """
    if split == "pipeline":
        return 2
    exchanges = 2 * layers + 1
    return 2 * ((exchanges + 1) // 2)


def predict(compute_ms: float, messages: int, delay: float) -> float:
    """Milliseconds per token: what it takes without any delay, and a delay (in seconds) for each message."""
    return compute_ms + messages * delay * 1e3


def bench_latency(
    *,
    delays: Sequence[float] = DELAYS,
    model: str | None = None,
    quick: bool = False,
    threads: int = 1,
    rounds: int = 3,
    tokens: int = 16,
    say: Callable[[str], None] = lambda line: None,
) -> LatencyBench:
    """Measure ``model`` ("demo", or a directory), or a random Llama of half a billion parameters (tiny: ``quick``).

    All contestants are loaded first and take turns, each at every delay. Raises `LabError` where there can be no lab.
    """
    if not delays or min(delays) <= 0:
        raise ConfigError("the latency of a cable must be more than 0; give at least one, such as 300us")
    busy = psutil.cpu_percent(_LOOK_SECONDS) / 100
    with tempfile.TemporaryDirectory(prefix="ferrule-bench-") as scratch:
        directory = given_or_random(model, Path(scratch), say, quick=quick)
        name = "ferrule-demo" if model == DEMO else directory.resolve().name
        layers = read_model(str(directory)).layers
        turns = asyncio.run(_measure(directory, threads, (0.0, *sorted(delays)), rounds, tokens, say))
    return LatencyBench(name, layers, least_disturbed(turns["alone", 0.0]), tuple(_rows(turns, layers)), busy)


Turns = dict[tuple[str, float], list[list[float]]]
"""By contestant and delay: for each turn the seconds that its tokens took."""


async def _measure(
    directory: Path, threads: int, delays: Sequence[float], rounds: int, tokens: int, say: Callable[[str], None]
) -> Turns:
    turns: Turns = {}
    async with AsyncExitStack() as stack:
        lab = stack.enter_context(Lab(pair()))
        (cable,) = lab.cables
        contestants = {}
        for who, tensor, pipeline in (("alone", 1, 1), ("tensor", 2, 1), ("pipeline", 1, 2)):
            say(f"loading the model, {who}")
            options = EngineOptions(str(directory), tensor=tensor, pipeline=pipeline, threads=threads, self_test=False)
            contestants[who] = await stack.enter_async_context(Ferrule(options, lab))
            await contestants[who].turn(4)
        for number in range(rounds):
            for delay in delays:
                say(f"round {number + 1} of {rounds}, {delay * 1e6:g} µs")
                cable.shape(delay=delay)
                for who in SPLITS if delay else contestants:
                    # The first one may still have met the cable as it was.
                    turns.setdefault((who, delay), []).append((await contestants[who].turn(tokens + 1))[1:])
    return turns


def _rows(turns: Turns, layers: int) -> list[LatencyRow]:
    rows = []
    for split in SPLITS:
        messages = messages_per_token(split, layers)
        compute = least_disturbed(turns[split, 0.0])
        for delay in sorted(delay for who, delay in turns if who == split):
            ms = least_disturbed(turns[split, delay])
            everything = statistics.median(chain.from_iterable(turns[split, delay])) * 1e3
            rows.append(LatencyRow(split, delay, messages, ms, everything, predict(compute, messages, delay), 1e3 / ms))
    return rows


def least_disturbed(turns: Sequence[Sequence[float]]) -> float:
    """Milliseconds: the lowest of the turns' medians."""
    return min(statistics.median(turn) for turn in turns) * 1e3


def to_json(bench: LatencyBench) -> str:
    return json.dumps(asdict(bench) | {"crossover": bench.crossover}, indent=1)
