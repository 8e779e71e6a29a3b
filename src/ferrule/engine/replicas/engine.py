"""Several whole copies of a model as one engine: requests are shared out, and outlive the copy that has them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ferrule.engine.host.local import LocalEngine, all_of
from ferrule.engine.host.requests import History, ReleasedError
from ferrule.engine.replicas.router import Router
from ferrule.engine.turn import FIRST_COME, Turn
from ferrule.engine.types import (
    Health,
    ImageInput,
    ImagePrompt,
    PrefixUse,
    RankInfo,
    ReplicaHealth,
    SamplingParams,
    SpeculationUse,
    State,
    Token,
)
from ferrule.errors import FerruleError, ModelUnavailable
from ferrule.model import PoolingMode

if TYPE_CHECKING:
    from ferrule.engine.types import Vector

_ORDER: tuple[State, ...] = ("ready", "recovering", "waiting", "loading", "failed", "closed")
"""States of replicas, the best first: the model's is the best one that a replica has."""


@dataclass
class Replica:
    """``engine``: None until it is loaded, and then ``error`` says why, if that was tried. ``speed``: relative to the
    others."""

    engine: LocalEngine | None = None
    error: FerruleError | None = None
    speed: float = 1.0

    @property
    def state(self) -> State:
        if self.engine is not None:
            return self.engine.state
        return "waiting" if isinstance(self.error, ModelUnavailable) else "failed" if self.error else "loading"


class Replicas:
    """`ferrule.engine.types.Engine` over ``count`` copies of a model, which `add` brings: ``first``, which is loaded,
    is one of them. What it says of itself is that one's, unless it is about all."""

    def __init__(self, first: LocalEngine, count: int) -> None:
        self.replicas = [Replica() for _ in range(count)]
        self._router = Router(count)
        self._begun = time.time()
        self._closed = False
        self._loading: list[asyncio.Task[None]] = []
        self.name, self.created, self.spec = first.name, first.created, first.spec
        self.vocab_size, self.tokenizer = first.vocab_size, first.tokenizer
        self.embedding, self.default_sampling = first.embedding, first.default_sampling
        self.adapters, self.image_marker = first.adapters, first.image_marker
        self.abilities = first.abilities
        self.plan = first.plan
        self.max_context = first.max_context
        """That every replica has room for, so that each can go on with what another one began."""
        self.ranks: tuple[RankInfo, ...] = ()
        """Of all replicas, one after the other; each counts its own from 0."""

    def add(self, number: int, engine: LocalEngine, speed: float = 1.0) -> None:
        """Replica ``number``, which is loaded now."""
        self.replicas[number] = Replica(engine, speed=speed)
        engine.on_change = lambda: self._changed(number)
        self._changed(number)

    def add_later(self, number: int, loading: Coroutine[None, None, None]) -> None:
        """Let ``loading``, which calls `add` or `lacks`, run until it has ended or this is closed."""
        self._loading.append(asyncio.create_task(loading, name=f"replica {number + 1}"))

    def lacks(self, number: int, error: FerruleError) -> None:
        """Replica ``number`` could not be loaded."""
        self.replicas[number].error = error

    @property
    def loaded(self) -> list[LocalEngine]:
        return [each.engine for each in self.replicas if each.engine is not None]

    async def read_images(self, text: str, images: Sequence[bytes], *, add_special_tokens: bool = False) -> ImagePrompt:
        """See `ferrule.engine.types.Engine.read_images`. What one replica has read is the same for all."""
        return await self.loaded[0].read_images(text, images, add_special_tokens=add_special_tokens)

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, images: Sequence[ImageInput] = ()
    ) -> AsyncGenerator[Token, None]:
        """See `ferrule.engine.types.Engine.generate`. An answer goes on at another replica when its own is lost."""
        if params.seed is None:  # so that its random numbers are the same on every replica
            params = replace(params, seed=secrets.randbits(63))
        made: list[int] = []
        crashes = 0
        while True:
            with self._opened(prompt, len(prompt) + len(made) + 1, params.adapter) as engine:
                history = History(tuple(made), crashes)
                if made and params.prompt_logprobs is not None:  # they came with the first token
                    params = replace(params, prompt_logprobs=None)
                try:
                    async with aclosing(engine.generate(prompt, params, images, history=history)) as stream:
                        async for token in stream:
                            made.append(token.id)
                            yield token
                    return
                except ReleasedError as error:
                    crashes = error.crashes

    async def embed(
        self, prompts: Sequence[Sequence[int]], pooling: PoolingMode | None = None, *, turn: Turn = FIRST_COME
    ) -> list[Vector]:
        """See `ferrule.engine.types.Engine.embed`. Each prompt goes its own way."""
        return await all_of(self._embed(prompt, pooling, turn) for prompt in prompts)

    async def _embed(self, prompt: Sequence[int], pooling: PoolingMode | None, turn: Turn) -> Vector:
        crashes = 0
        while True:
            with self._opened(prompt, len(prompt)) as engine:
                try:
                    (vector,) = await engine.embed([prompt], pooling, turn=turn, history=History(crashes=crashes))
                except ReleasedError as error:
                    crashes = error.crashes
                    continue
                return vector

    def health(self) -> Health:
        told = [self._told(replica) for replica in self.replicas]
        states = [each.state for each in told]
        best = "closed" if self._closed else min(states, key=_ORDER.index)
        known = [engine.health() for engine in self.loaded]
        since = [each.since for each in known if each.state == best] or [self._begun]
        lasts = [each.last_recovery for each in known if each.last_recovery is not None]
        away = [
            f"replica {number} of {len(told)} is {each.state}" + (f": {each.error}" if each.error else "")
            for number, each in enumerate(told, start=1)
            if each.state != "ready"
        ]
        notes = dict.fromkeys(each.note for each in known if each.note)
        return Health(
            best,
            None if best == "ready" else next((each.error for each in told if each.error and each.state == best), None),
            sum(each.running for each in known),
            sum(each.waiting for each in known),
            min(since) if best == "ready" else max(since),
            sum(each.recoveries for each in known),
            max(lasts, key=lambda each: each.at, default=None),
            "; ".join([*notes, *(away if best == "ready" else [])]) or None,
            _together([each.prefix for each in known if each.prefix is not None]),
            _guessed([each.speculation for each in known if each.speculation is not None]),
            next((each.streamed for each in known if each.streamed is not None), None),
            tuple(told),
        )

    async def drain(self, seconds: float) -> bool:
        """See `ferrule.engine.types.Engine.drain`."""
        return all(await asyncio.gather(*(engine.drain(seconds) for engine in self.loaded)))

    async def close(self) -> None:
        self._closed = True
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in self.loaded))

    @staticmethod
    def _told(replica: Replica) -> ReplicaHealth:
        if replica.engine is None:
            return ReplicaHealth(replica.state, str(replica.error) if replica.error else None)
        health, ranks = replica.engine.health(), replica.engine.ranks
        return ReplicaHealth(
            health.state,
            health.error,
            health.running,
            health.waiting,
            tuple(dict.fromkeys(rank.host for rank in ranks)),
            tuple(rank.device for rank in ranks),
        )

    @contextmanager
    def _opened(self, prompt: Sequence[int], tokens: int, adapter: str | None = None) -> Iterator[LocalEngine]:
        """The replica for a request: one that is ready, or where none is comes back; with room for so many ``tokens``,
        if one has that."""
        engines = {at: each.engine for at, each in enumerate(self.replicas) if each.engine is not None}
        states = {at: self.replicas[at].state for at in engines}
        best = min(states.values(), key=_ORDER.index)
        found = {at: engine for at, engine in engines.items() if states[at] == best}
        roomy = {at: engine for at, engine in found.items() if engine.max_context >= tokens}
        number = self._router.opened(prompt, {at: self.replicas[at].speed for at in roomy or found}, adapter)
        try:
            yield engines[number]
        finally:
            self._router.closed(number)

    def _changed(self, number: int) -> None:
        """A replica was lost, is back or has failed: requests that wait for one go on at another that is ready; those
        of a failed one at one that comes back."""
        self.plan = self.loaded[0].plan
        self.ranks = tuple(rank for engine in self.loaded for rank in engine.ranks)
        self.max_context = min(engine.max_context for engine in self.loaded)
        states = [each.state for each in self.replicas]
        if states[number] != "ready":
            self._router.lost(number)
        for replica, state in zip(self.replicas, states, strict=True):
            elsewhere = "ready" in states or (state == "failed" and "recovering" in states)
            if replica.engine is not None and state != "ready" and elsewhere:
                replica.engine.release()


def _guessed(uses: Sequence[SpeculationUse]) -> SpeculationUse | None:
    """As `_together`."""
    return SpeculationUse(sum(each.drafted for each in uses), sum(each.accepted for each in uses)) if uses else None


def _together(uses: Sequence[PrefixUse]) -> PrefixUse | None:
    """Of all replicas."""
    if not uses:
        return None
    return PrefixUse(
        sum(each.tokens for each in uses), sum(each.stored for each in uses), sum(each.hits for each in uses)
    )
