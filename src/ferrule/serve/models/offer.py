"""Models that an address offers, whether they are in memory or not."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ferrule.engine import Engine, EngineOptions, Health, ImageInput, ImagePrompt, RankInfo, SamplingParams, Token, Turn
from ferrule.engine.abilities import BUILT_IN, Abilities
from ferrule.engine.device_names import CPU
from ferrule.engine.host.prepare import PreparedModel, name_of
from ferrule.engine.images.prompts import marker_of
from ferrule.engine.turn import FIRST_COME
from ferrule.engine.types import Tokenizer
from ferrule.errors import EngineError
from ferrule.model import Embedding, ModelSpec, PoolingMode
from ferrule.plan import Plan, rank_memory
from ferrule.serve.tools.families import AUTO

if TYPE_CHECKING:
    from ferrule.engine import Vector


class Need(NamedTuple):
    """Bytes that a model takes when it is loaded. ``cache``: those of ``total`` that it does not take before requests
    come. ``on_host``: whether that is the memory of processors."""

    total: int
    cache: int = 0
    on_host: bool = True

    @classmethod
    def of(cls, options: EngineOptions, model: PreparedModel, context: int) -> Need:
        """By the planner's prediction, with one sequence of ``context`` tokens. Where weights are streamed as needed,
        all of them count: how many stay on disk is not known before they are loaded."""
        uses = rank_memory(model.spec, model.plan, context=context, weights=options.stream_weights)
        waiting = sum(use.runtime for use in uses) if options.standby else 0
        cache = sum(use.cache for use in uses)
        return cls(sum(use.total for use in uses) + waiting, cache, options.device == CPU)


@dataclass
class Unloaded:
    """`ferrule.engine.Engine` of a model that is not in memory: what its files say of it, without the weights.
    ``state``: ``unloaded``, ``loading``, or ``failed`` to load, with an ``error``."""

    name: str
    created: int
    spec: ModelSpec
    plan: Plan
    tokenizer: Tokenizer
    default_sampling: SamplingParams
    max_context: int
    adapters: tuple[str, ...] = ()
    embedding: Embedding = field(default_factory=Embedding)
    image_marker: str | None = None
    abilities: Abilities = BUILT_IN
    state: str = "unloaded"
    error: str | None = None
    ranks: tuple[RankInfo, ...] = ()

    def __post_init__(self) -> None:
        self.vocab_size = self.spec.vocab_size

    @classmethod
    def of(cls, options: EngineOptions, model: PreparedModel) -> Unloaded:
        return cls(
            name_of(options, model.directory),
            int(time.time()),
            model.spec,
            model.plan,
            model.tokenizer,
            model.default_sampling,
            options.max_context or model.longest,
            tuple(each.name for each in options.adapters),
            model.embedding,
            image_marker=None if model.images is None else marker_of(model.images, model.tokenizer),
        )

    async def read_images(self, text: str, images: Sequence[bytes], *, add_special_tokens: bool = False) -> ImagePrompt:
        raise EngineError(f"{self.name} is not loaded")

    def generate(
        self, prompt: Sequence[int], params: SamplingParams, images: Sequence[ImageInput] = ()
    ) -> AsyncGenerator[Token, None]:
        raise EngineError(f"{self.name} is not loaded")

    async def embed(
        self, prompts: Sequence[Sequence[int]], pooling: PoolingMode | None = None, *, turn: Turn = FIRST_COME
    ) -> list[Vector]:
        raise EngineError(f"{self.name} is not loaded")

    def health(self) -> Health:
        if self.state == "failed":
            return Health("failed", self.error)
        return Health("loading" if self.state == "loading" else "closed")

    async def drain(self, seconds: float) -> bool:
        """There is nothing that is open."""
        return True

    async def close(self) -> None:
        """There is nothing to be stopped."""


@dataclass(frozen=True)
class Offer:
    """A model that an address serves, and how. ``load`` raises `FerruleError`. ``pin``: never unloaded.
    ``ttl``: seconds without a request after which it is unloaded; None: only where others need its memory.
    ``preload``: at the start, as the first one always is. ``tool_parser``: as `dialect` takes it."""

    unloaded: Unloaded
    load: Callable[[], Awaitable[Engine]]
    need: Need
    pin: bool = False
    ttl: float | None = None
    preload: bool = False
    tool_parser: str = AUTO

    @property
    def name(self) -> str:
        return self.unloaded.name


def is_loaded(engine: Engine) -> bool:
    """Whether the model is in memory."""
    return not isinstance(getattr(engine, "base", engine), Unloaded)


def together(states: Sequence[str]) -> str:
    """State of several models: ``ready``, unless the first one cannot run and no other does; then that one's."""
    runs = states[0] in ("unloaded", "loading") or "ready" in states
    return "ready" if runs else states[0]


def state_of(engine: Engine) -> str:
    """State of a model for people and programs, also of an `Unloaded` one."""
    base = getattr(engine, "base", engine)  # of a model with an adapter
    return base.state if isinstance(base, Unloaded) else engine.health().state
