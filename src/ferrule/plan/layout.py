"""Who holds what: a split of a model over named devices, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ferrule.errors import PlanError
from ferrule.model.layer import WHOLE, Share
from ferrule.plan.plan import Strategy

Objective = Literal["latency", "throughput", "ttft", "context", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "ttft", "context", "energy")


@dataclass(frozen=True)
class Stage:
    """Layers ``first_layer`` up to ``last_layer`` (not included) on ``devices``, cut into ``shares`` of the same order.

    ``experts``: routed experts are given out whole, a share of them to each device, instead of cut.
    """

    devices: tuple[str, ...]
    first_layer: int
    last_layer: int
    shares: tuple[Share, ...] = (WHOLE,)
    experts: bool = False

    def __post_init__(self) -> None:
        if not self.devices or len(self.devices) != len(self.shares):
            raise PlanError("a stage needs as many shares as devices, and at least one")
        if not 0 <= self.first_layer < self.last_layer:
            raise PlanError(f"a stage of layers {self.first_layer} up to {self.last_layer} holds nothing")

    @property
    def width(self) -> int:
        return len(self.devices)

    @property
    def even(self) -> bool:
        return len(set(self.shares)) == 1


@dataclass(frozen=True)
class Layout:
    """``stages`` in the order of the layers. Rank numbers count through them.

    ``obstacle``: why the built-in engine cannot run it, or None.
    """

    stages: tuple[Stage, ...]
    obstacle: str | None = None

    def __post_init__(self) -> None:
        at = 0
        for stage in self.stages:
            if stage.first_layer != at:
                raise PlanError(f"layers {at} up to {stage.first_layer} are on no stage")
            at = stage.last_layer
        if len(set(self.devices)) != len(self.devices):
            raise PlanError("a device is in two stages")

    @property
    def devices(self) -> tuple[str, ...]:
        """By rank."""
        return tuple(device for stage in self.stages for device in stage.devices)

    @property
    def strategy(self) -> Strategy:
        wide = max(stage.width for stage in self.stages) > 1
        if len(self.stages) > 1:
            return "hybrid" if wide else "pipeline"
        if not wide:
            return "single"
        return "expert" if self.stages[0].experts else "tensor"


@dataclass(frozen=True)
class Workload:
    """``context``: tokens of one sequence for which there must be room. ``prompt``: tokens whose processing the time
    to first token counts. ``concurrency``: sequences at once. ``depth``: tokens that are already there when a token is
    timed; None: the prompt. ``kwh_price``: US dollars per kilowatt hour, if the price of tokens is to count it."""

    context: int = 4096
    prompt: int = 512
    concurrency: int = 1
    depth: int | None = None
    kwh_price: float | None = None

    def __post_init__(self) -> None:
        for name in ("context", "prompt", "concurrency"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.depth is not None and self.depth < 0:
            raise PlanError(f"depth must be at least 0, not {self.depth}")
        if self.kwh_price is not None and self.kwh_price < 0:
            raise PlanError(f"kwh_price must be at least 0, not {self.kwh_price}")

    @property
    def seen(self) -> int:
        """Tokens before the one that is timed."""
        return self.prompt if self.depth is None else self.depth


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device: ``weights``, ``cache`` for the context asked for of all sequences at once, ``activations``,
    and ``runtime`` of the process. ``room``: what the device has. ``margin`` is what then is left."""

    device: str
    weights: int
    cache: int
    activations: int
    runtime: int
    room: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations + self.runtime

    @property
    def margin(self) -> int:
        return self.room - self.total


TermKind = Literal["weights", "cache", "compute", "launch", "collective", "hop", "disk"]


@dataclass(frozen=True)
class Term:
    """A part of the time of one token (or prompt): ``where``: devices, a link or a rail."""

    kind: TermKind
    where: str
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """``token_seconds``: from one token of a single stream to the next. ``step_seconds``: the same with all
    ``concurrency`` sequences under way. ``ttft_seconds``: of one prompt. ``terms`` add up to ``token_seconds``,
    ``prompt_terms`` to ``ttft_seconds``, and ``step_terms`` to ``step_seconds``: where the slowest stage sets the pace,
    those are of that stage alone. ``joules`` and ``dollars_per_million`` per token and million tokens at the
    concurrency, where watts and prices are known. ``largest_context``: of each of the concurrent sequences, by memory.
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


@dataclass(frozen=True)
class Candidate:
    layout: Layout
    prediction: Prediction
