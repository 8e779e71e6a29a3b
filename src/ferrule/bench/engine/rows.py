"""Result rows of `ferrule bench engine`: one for each contestant, format, phase and number of streams."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from ferrule.bench.engine.contestants import seconds_per_token

Phase = Literal["decode", "prefill", "serve", "whole", "prefix", "alone", "beside"]


@dataclass(frozen=True)
class EngineRow:
    """``format`` of the weights. ``phase``: ``decode`` (one sequence), ``prefill`` (one prompt), ``serve`` (through
    HTTP, ``concurrency`` streams at once), ``whole`` (a prompt of `serving.SHARED` tokens and some more) or ``prefix``
    (another one that begins with the same `serving.SHARED`), ``alone`` (streams that nothing disturbs) or ``beside``
    (the same while long prompts come, whose first tokens ``ttft_ms`` is of). ``tokens_s_…``: over all turns; of
    ``serve``, of all streams together from the first request to the last token. ``ttft_ms``: until the first token, and
    ``itl_…_ms``: between two of one stream, medians; None where that was not measured."""

    impl: str
    ranks: int
    threads: int
    format: str
    phase: Phase
    concurrency: int
    tokens_s_median: float
    tokens_s_min: float
    tokens_s_max: float
    ttft_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None


@dataclass(frozen=True)
class Who:
    """A contestant: ``threads`` are of each rank."""

    impl: str
    ranks: int
    threads: int
    format: str


@dataclass(frozen=True)
class Turn:
    """One turn of a contestant. ``first``: seconds until the first token, one for each stream; ``gaps``: seconds
    between tokens, of all streams; ``tokens_s``: of the whole turn."""

    tokens_s: float
    first: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()


def decode_turn(seconds: Sequence[float]) -> Turn:
    """``seconds`` that each token but the first took."""
    return Turn(1 / seconds_per_token(seconds), gaps=tuple(seconds))


def prefill_turn(tokens: int, seconds: float) -> Turn:
    return Turn(tokens / seconds, first=(seconds,))


def row(who: Who, phase: Phase, concurrency: int, turns: Sequence[Turn]) -> EngineRow:
    speeds = [turn.tokens_s for turn in turns]
    first = [each for turn in turns for each in turn.first]
    gaps = sorted(each for turn in turns for each in turn.gaps)
    return EngineRow(
        who.impl, who.ranks, who.threads, who.format, phase, concurrency,
        statistics.median(speeds), min(speeds), max(speeds),
        statistics.median(first) * 1e3 if first else None,
        statistics.median(gaps) * 1e3 if gaps else None,
        gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] * 1e3 if gaps else None,
    )  # fmt: skip


def to_json(rows: Sequence[EngineRow]) -> str:
    return json.dumps([asdict(each) for each in rows], indent=1)
