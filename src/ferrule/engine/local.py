"""A model on ranks of this machine, for an asyncio program."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from ferrule.engine.control import params_to_json
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.engine.prepare import PreparedModel, in_background, prepare
from ferrule.engine.ranks import Event, Ranks
from ferrule.engine.source import DEMO
from ferrule.engine.types import (
    Health,
    Progress,
    ProgressCallback,
    RankInfo,
    SamplingParams,
    State,
    Token,
)
from ferrule.errors import EngineError, FerruleError, RequestError
from ferrule.plan.device_backend import usable_cores

if TYPE_CHECKING:
    from ferrule.lab import Lab

LOAD_TIMEOUT = 3600.0
"""Seconds that loading may take in all."""

DEMO_NAME = "ferrule-demo"


class LocalEngine:
    """`ferrule.engine.types.Engine` over rank processes of this machine. Made by `start`."""

    def __init__(self, options: EngineOptions, model: PreparedModel, lab: Lab | None = None) -> None:
        self.name = options.name or (DEMO_NAME if options.model == DEMO else model.directory.resolve().name)
        self.created = int(time.time())
        self.spec = model.spec
        self.plan = model.plan
        self.vocab_size = model.spec.vocab_size
        self.max_context = options.max_context or model.spec.max_context
        self.tokenizer = model.tokenizer
        self.default_sampling = model.default_sampling
        self.ranks: tuple[RankInfo, ...] = ()
        self._state: State = "loading"
        self._error: FerruleError | None = None
        self._running = self._waiting = 0
        self._numbers = itertools.count(1)
        self._streams: dict[int, asyncio.Queue[Token | FerruleError]] = {}
        self._on_progress: ProgressCallback | None = None
        self._infos: dict[int, RankInfo] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rank_options = RankOptions(
            directory=str(model.directory.resolve()),
            dtype=options.dtype,
            plan=self.plan,
            threads=options.threads or max(1, usable_cores() // self.plan.world_size),
            context=self.max_context,
            max_sequences=options.max_sequences,
            batch_tokens=options.batch_tokens,
            end_tokens=tuple(sorted(model.end_tokens)),
            identity=model.identity,
        )
        self._processes = Ranks(rank_options, self._heard, self._failed, lab)

    async def load(self, on_progress: ProgressCallback | None) -> None:
        """Wait until every rank is ready. Raises the first cause where one fails; no process is left then."""
        self._on_progress = on_progress
        try:
            await self._processes.connect()
            async with asyncio.timeout(LOAD_TIMEOUT):
                await self._ready
        except TimeoutError:
            await self.close()
            raise EngineError(f"loading took more than {LOAD_TIMEOUT:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def generate(self, prompt: Sequence[int], params: SamplingParams) -> AsyncGenerator[Token, None]:
        """See `ferrule.engine.types.Engine.generate`."""
        self._check(prompt)
        number = next(self._numbers)
        stream: asyncio.Queue[Token | FerruleError] = asyncio.Queue()
        self._streams[number] = stream
        finished = False
        self._processes.send({"op": "add", "id": number, "prompt": list(prompt), "params": params_to_json(params)})
        try:
            while not finished:
                token = await stream.get()
                if isinstance(token, FerruleError):
                    finished = True
                    raise token
                finished = token.finish is not None
                yield token
        finally:
            del self._streams[number]
            if not finished:
                self._processes.send({"op": "cancel", "id": number})

    def health(self) -> Health:
        error = str(self._error) if self._error else None
        return Health(self._state, error, self._running, self._waiting)

    async def close(self) -> None:
        if self._state == "closed":
            return
        self._state = "closed"
        self._end_streams(EngineError("the engine was closed"))
        await self._processes.stop()

    def _check(self, prompt: Sequence[int]) -> None:
        if self._state != "ready":
            raise EngineError(f"the model is {self._state}" + (f": {self._error}" if self._error else ""))
        if not prompt:
            raise RequestError("the prompt is empty", param="prompt")
        if len(prompt) >= self.max_context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, but this model's context is {self.max_context} tokens for "
                "prompt and answer together; shorten the prompt",
                code="context_length_exceeded",
            )
        strange = next((token for token in prompt if not 0 <= token < self.vocab_size), None)
        if strange is not None:
            raise RequestError(f"token {strange} is outside the vocabulary of {self.vocab_size}", param="prompt")

    def _heard(self, rank: int, event: Event) -> None:
        match event["event"]:
            case "tokens":
                for number, token, logprob, top, finish in event["tokens"]:
                    stream = self._streams.get(number)
                    if stream is not None:  # else: cancelled while this was on its way
                        alternatives = tuple((int(other), float(value)) for other, value in top)
                        stream.put_nowait(Token(token, logprob, alternatives, finish))
            case "load":
                self._running, self._waiting = event["running"], event["waiting"]
            case "progress":
                if self._on_progress is not None:
                    self._on_progress(Progress(**{k: v for k, v in event.items() if k != "event"}))
            case "ready":
                self._infos[rank] = RankInfo(**event["info"])
                self.max_context = min(self.max_context, event["cache_tokens"])
                if len(self._infos) == self.plan.world_size:
                    self.ranks = tuple(self._infos[index] for index in range(self.plan.world_size))
                    if not self._ready.done():
                        self._state = "ready"  # here, so that a failure that follows at once is not overwritten
                        self._ready.set_result(None)

    def _failed(self, error: FerruleError) -> None:
        if self._state == "closed":
            return
        self._error = error
        self._running = self._waiting = 0
        if not self._ready.done():
            self._ready.set_exception(error)
            return
        self._state = "failed"
        self._end_streams(EngineError(str(error)))

    def _end_streams(self, error: FerruleError) -> None:
        for stream in self._streams.values():
            stream.put_nowait(error)


async def start(
    options: EngineOptions, on_progress: ProgressCallback | None = None, *, lab: Lab | None = None
) -> LocalEngine:
    """Find, check, plan and load a model on ranks of this machine, or of a ``lab`` that is up, one host after another.

    ``on_progress`` is called from the event loop. Raises `ModelError`, `PlanError` or `ConfigError` before any process
    is started where the files or the split are at fault, `EngineError` where a rank fails.
    """
    engine = LocalEngine(options, await in_background(lambda: prepare(options)), lab)
    await engine.load(on_progress)
    return engine
