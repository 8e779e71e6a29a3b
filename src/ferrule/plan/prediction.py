"""Prediction for a plan: memory, times by what takes them, energy and money."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ferrule.plan.plan import Plan


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device: ``weights``, ``cache`` for the context asked for of all sequences at once, ``activations``,
    and ``runtime`` of the process; ``reserve``: what the engine keeps free beside the caches. ``room``: what the device
    has. ``margin`` is what then is left."""

    device: str
    weights: int
    cache: int
    activations: int
    runtime: int
    room: int
    reserve: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.weights + self.cache + self.activations + self.runtime

    @property
    def needed(self) -> int:
        return self.total + self.reserve

    @property
    def margin(self) -> int:
        return self.room - self.needed


TermKind = Literal["weights", "cache", "compute", "launch", "collective", "hop", "disk", "step"]


@dataclass(frozen=True)
class Term:
    """A part of the time of one token (or prompt): ``where``: devices, a pair of them or a rail."""

    kind: TermKind
    where: str
    seconds: float


class Interval(NamedTuple):
    """Log of the factor either way within which four of five measurements are expected: of a token of a single stream,
    of a step of all, and of a prompt."""

    token: float = 0.0
    step: float = 0.0
    prompt: float = 0.0


NONE = Interval()


@dataclass(frozen=True)
class Between:
    """The least and the most that is expected, in four of five cases."""

    low: float
    high: float

    @classmethod
    def about(cls, value: float, spread: float) -> Between:
        return cls(value * math.exp(-spread), value * math.exp(spread))


@dataclass(frozen=True)
class Prediction:
    """``token_seconds``: from one token of a single stream to the next. ``step_seconds``: the same with all
    ``concurrency`` sequences under way. ``ttft_seconds``: of one prompt. ``terms`` add up to ``token_seconds``,
    ``prompt_terms`` to ``ttft_seconds``, and ``step_terms`` to ``step_seconds``: where the slowest stage sets the pace,
    those are of that stage alone. ``joules`` and ``dollars_per_million`` per token and million tokens at the
    concurrency, where watts and prices are known. ``largest_context``: of each of the concurrent sequences, by memory.
    ``interval``: how far off that may be. ``answer``: tokens of an answer, for `answer_seconds`.
    """

    token_seconds: float
    step_seconds: float
    ttft_seconds: float
    concurrency: int
    memory: tuple[MemoryUse, ...]
    terms: tuple[Term, ...]
    prompt_terms: tuple[Term, ...]
    step_terms: tuple[Term, ...]
    largest_context: int
    watts: float | None = None
    joules: float | None = None
    dollars_per_million: float | None = None
    interval: Interval = NONE
    answer: int = 1

    @property
    def answer_seconds(self) -> float:
        """From a request to the last token of its answer."""
        return self.ttft_seconds + (self.answer - 1) * self.token_seconds

    @property
    def answer_between(self) -> Between:
        """Seconds: by how sure its larger part is."""
        tokens = self.answer_seconds - self.ttft_seconds
        spread = self.interval.token if tokens > self.ttft_seconds else self.interval.prompt
        return Between.about(self.answer_seconds, spread)

    @property
    def fits(self) -> bool:
        return all(use.margin >= 0 for use in self.memory)

    @property
    def tokens_per_s(self) -> float:
        """Of a single stream."""
        return 1 / self.token_seconds

    @property
    def throughput(self) -> float:
        """Tokens per second of all streams together."""
        return self.concurrency / self.step_seconds

    @property
    def tokens_between(self) -> Between:
        """Tokens per second of a single stream."""
        return Between.about(self.tokens_per_s, self.interval.token)

    @property
    def throughput_between(self) -> Between:
        return Between.about(self.throughput, self.interval.step)

    @property
    def ttft_between(self) -> Between:
        """Seconds."""
        return Between.about(self.ttft_seconds, self.interval.prompt)


@dataclass(frozen=True)
class Candidate:
    """A plan and what is predicted of it."""

    plan: Plan
    prediction: Prediction
