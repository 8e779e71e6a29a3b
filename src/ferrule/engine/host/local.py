"""A model on rank processes, for an asyncio program: its requests, which outlive the ranks."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ferrule.engine.abilities import BUILT_IN
from ferrule.engine.grammar import NO_STRUCTURE
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.placement import Loss, Planner
from ferrule.engine.host.prepare import PlanChoice, PreparedModel, name_of, prepared, rank_options
from ferrule.engine.host.requests import DRAINING, History, ReleasedError, Request, Requests, check_prompt
from ferrule.engine.host.starting import Running
from ferrule.engine.host.supervisor import RankSupervisor
from ferrule.engine.images.prompts import ImagePrompts, order_of
from ferrule.engine.images.reader import ImageReader
from ferrule.engine.messages import (
    Cancel,
    Embedded,
    Event,
    Hand,
    HandOverEvent,
    Learn,
    Load,
    Loading,
    Order,
    Refused,
    Scores,
    Tokens,
)
from ferrule.engine.options import EngineOptions
from ferrule.engine.source import COMPUTED
from ferrule.engine.turn import FIRST_COME, Turn
from ferrule.engine.types import (
    VECTORS_ONLY,
    Health,
    ImageInput,
    ImagePrompt,
    PrefixUse,
    ProgressCallback,
    RankInfo,
    SamplingParams,
    SpeculationUse,
    State,
    StreamUse,
    Token,
)
from ferrule.engine.vectors import finished
from ferrule.errors import EngineError, FerruleError, ModelUnavailable, RequestError
from ferrule.model import PoolingMode

if TYPE_CHECKING:
    from ferrule.engine.types import Vector
    from ferrule.lab import Lab

Taken = TypeVar("Taken")

NEW_SECONDS = 60.0
"""Seconds that a request which comes while the ranks are being restarted waits for them."""
INTERRUPTED_SECONDS = 300.0
"""Seconds that a request whose answer has begun waits for the model to come back."""

TEXT_ONLY = "this model takes text only, no images"


class LocalEngine:
    """`ferrule.engine.types.Engine` over the rank processes that a `Planner` places. Made by `start`. ``secret``: that
    of `Meet`."""

    def __init__(self, options: EngineOptions, model: PreparedModel, planner: Planner, secret: str = "") -> None:
        told = rank_options(options, model)
        self.name = name_of(options, model.directory)
        self.created = int(time.time())
        self.spec = model.spec
        self.plan = model.plan
        self.vocab_size = model.spec.vocab_size
        self.max_context = told.context
        self.tokenizer = model.tokenizer
        self.embedding, self._dense = model.embedding, model.dense
        self.default_sampling = model.default_sampling
        self._reader: ImageReader | None = None
        self._images: ImagePrompts | None = None
        if model.images is not None:
            stored = model.spec.stored if model.spec.stored in COMPUTED else "float32"
            dtype = stored if options.dtype == "auto" else options.dtype
            self._reader = ImageReader(order_of(model.directory, model.images, dtype))
            self._images = ImagePrompts(model.images, model.tokenizer, self._reader)
        self.image_marker = None if self._images is None else self._images.marker
        self.abilities = BUILT_IN
        self.ranks: tuple[RankInfo, ...] = ()
        self.adapters = tuple(each.name for each in model.adapters)
        self._running = self._waiting = 0
        self._prefix: PrefixUse | None = None
        self._drafted = self._accepted = 0
        self._streamed: StreamUse | None = None
        self._taught = False  # whether the ranks have the tokenizer
        self._requests = Requests()
        self._draining = False
        self._streams: dict[int, asyncio.Queue[Token | Vector | FerruleError]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._on_progress: ProgressCallback | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when the ranks are lost, before their requests wait; when they are back; and when they never will."""
        self.on_hand_over: Callable[[HandOverEvent], None] = lambda event: None
        """Called with what the ranks say of prompts that go from one group of them to another."""
        self._supervisor = RankSupervisor(told, planner, self, secret=secret)

    async def load(self, on_progress: ProgressCallback | None) -> None:
        """Wait until every rank is ready. Raises the first cause where one fails; no process is left then."""
        self._on_progress = on_progress
        try:
            await self._supervisor.start()
        finally:
            self._on_progress = None

    def all_loaded(self) -> None:
        """Every copy of the model that shares memory with this one is loaded now."""
        self._supervisor.options = replace(self._supervisor.options, copies_left=0)

    async def read_images(self, text: str, images: Sequence[bytes], *, add_special_tokens: bool = False) -> ImagePrompt:
        """See `ferrule.engine.types.Engine.read_images`."""
        if self._images is None:
            raise RequestError(TEXT_ONLY, code="unsupported")
        return await self._images.read(text, images, self.max_context - 1, add_special_tokens=add_special_tokens)

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        images: Sequence[ImageInput] = (),
        *,
        history: History | None = None,
        hand: Hand | None = None,
    ) -> AsyncGenerator[Token, None]:
        """See `ferrule.engine.types.Engine.generate`. ``history``: the answer goes on behind that. ``hand``: what of
        the prompt goes to other ranks. Raises `ReleasedError` after `release`."""
        if images and self.image_marker is None:
            raise RequestError(TEXT_ONLY, code="unsupported")
        if self.embedding.only:
            raise RequestError(VECTORS_ONLY, code="unsupported")
        self._check(prompt if history is None else (*prompt, *history.made), new=history is None)
        if params.adapter is not None and params.adapter not in self.adapters:
            raise RequestError(f"there is no adapter {params.adapter!r}", param="model", code="model_not_found")
        if params.constraint is not None and self.tokenizer.to_json() is None:
            raise RequestError(NO_STRUCTURE, code="unsupported")
        if params.seed is None:  # so that its random numbers are the same on every rank
            params = replace(params, seed=secrets.randbits(63))
        with self._opened(self._requests.add(prompt, params, None, images, history, hand)) as stream:
            finished = False
            while not finished:
                token = _taken(await stream.get(), Token)
                finished = token.finish is not None
                yield token

    async def embed(
        self,
        prompts: Sequence[Sequence[int]],
        pooling: PoolingMode | None = None,
        *,
        turn: Turn = FIRST_COME,
        history: History | None = None,
    ) -> list[Vector]:
        """See `ferrule.engine.types.Engine.embed`. ``history``: as of `generate`."""
        if self.embedding.refusal is not None:
            raise RequestError(self.embedding.refusal, code="unsupported")
        for prompt in prompts:
            self._check(prompt, answer=0, new=history is None)
        pooled = await all_of(
            self._embed(prompt, pooling or self.embedding.pooling, turn, history) for prompt in prompts
        )
        finish = partial(finished, pooled, self._dense, normalize=self.embedding.normalize)
        return await asyncio.to_thread(finish) if self._dense else finish()

    async def _embed(self, prompt: Sequence[int], pooling: PoolingMode, turn: Turn, history: History | None) -> Vector:
        request = self._requests.add(prompt, SamplingParams(turn=turn), pooling, history=history)
        with self._opened(request) as stream:
            vector: Vector = _taken(await stream.get(), np.ndarray)
        return vector

    @contextmanager
    def _opened(self, request: Request) -> Iterator[asyncio.Queue[Token | Vector | FerruleError]]:
        """What comes for ``request``, which ends with the context."""
        stream = self._streams[request.number] = asyncio.Queue()
        try:
            self._limit_wait(request, INTERRUPTED_SECONDS if self._supervisor.moving else NEW_SECONDS)
            self._send_due()
            yield stream
        finally:
            self._forget(request)
            del self._streams[request.number]
            if request.sent and not request.finished:
                self._supervisor.send(Cancel(request.number))
            self._send_due()  # others may have waited for this one

    def order(self, message: Order) -> None:
        """To the driver; nothing happens while there is none."""
        self._supervisor.send(message)

    @property
    def state(self) -> State:
        """As `health` tells it."""
        return self._supervisor.state

    def health(self) -> Health:
        supervisor = self._supervisor
        return Health(
            supervisor.state,
            str(supervisor.error) if supervisor.error else None,
            self._running,
            self._waiting + self._requests.unsent,
            supervisor.since,
            supervisor.recoveries,
            supervisor.last,
            supervisor.note or None,
            self._prefix,
            SpeculationUse(self._drafted, self._accepted) if self._guesses else None,
            self._streamed,
        )

    @property
    def _guesses(self) -> bool:
        asked = self._supervisor.options.speculate > 0 and not self.embedding.only
        return asked and not any(each.unguessed for each in self.ranks)

    def release(self) -> None:
        """Give away the requests that wait for ranks: they raise `ReleasedError`."""
        for request in self._requests.movable():
            self._end(request, ReleasedError(request.crashes))

    async def drain(self, seconds: float) -> bool:
        """See `ferrule.engine.types.Engine.drain`."""
        self._draining = True
        return await self._requests.ended_within(seconds)

    async def close(self) -> None:
        await self._supervisor.close()
        if self._reader is not None:
            await self._reader.close()
        for stream in self._streams.values():
            stream.put_nowait(EngineError("the engine was closed"))

    def heard(self, event: Event) -> None:
        match event:
            case Tokens():
                for new in event.tokens:
                    self._drafted += new.guessed + new.wrong
                    self._accepted += new.guessed
                    request = self._requests.open.get(new.id)
                    if request is not None:  # else: cancelled while this was on its way
                        asked = request.params.prompt_logprobs is not None and not request.made
                        prompt = tuple(request.scores) if asked else None
                        told = new.finish, prompt, new.cached, new.guessed, new.wrong
                        self._streams[new.id].put_nowait(Token(new.token, new.logprob, new.top, *told))
                        if self._requests.took(request, new.token, last=new.finish is not None):
                            self._send_due()
            case Scores():
                scored = self._requests.open.get(event.id)
                if scored is not None:
                    self._requests.scored(scored, event.first, event.tokens)
            case Embedded():
                embedded = self._requests.open.get(event.id)
                if embedded is not None:
                    self._streams[event.id].put_nowait(np.frombuffer(event.vector, np.float32))
                    if self._requests.embedded(embedded):
                        self._send_due()
            case Refused():
                refused = self._requests.open.get(event.id)
                if refused is not None:
                    self._end(refused, RequestError(f"structured output: {event.message}", code=event.code))
            case Load():
                self._running, self._waiting = event.running, event.waiting
                self._prefix, self._streamed = event.prefix, event.streamed
            case Loading():
                if self._on_progress is not None:
                    self._on_progress(event.progress)
            case _ if isinstance(event, HandOverEvent):
                self.on_hand_over(event)

    def went_up(self, running: Running) -> int:
        self._taught = False
        self.plan = running.plan
        self.ranks = tuple(running.infos[index] for index in range(running.plan.world_size))
        self.max_context = min(self._supervisor.options.context, running.cache_tokens)
        for request in list(self._requests.open.values()):
            answer = int(request.pooling is None)
            if len(request.prompt) + len(request.made) + answer > self.max_context and not request.finished:
                self._end(request, EngineError(f"after a restart there is room for {self.max_context} tokens only"))
        going_on = sum(bool(request.made) and not request.finished for request in self._requests.open.values())
        self._send_due()
        self.on_change()
        return going_on

    def idle(self) -> bool:
        return not self._requests.open

    def went_down(self, loss: Loss) -> bool:
        self._running = self._waiting = 0
        self._prefix = self._streamed = None
        given_up = self._requests.interrupted(crashed=loss.crashed)
        for request in given_up:
            self._end(
                request,
                RequestError(
                    f"this request was being answered in {request.crashes} crashes in a row, so it is given up; "
                    f"the last one: {loss.error}",
                    code="request_crashes_model",
                ),
            )
        self.on_change()
        for request in self._requests.open.values():
            if not request.sent:
                self._limit_wait(request, INTERRUPTED_SECONDS)
        return bool(given_up)

    def failed(self, error: FerruleError) -> None:
        self.on_change()
        for request in list(self._requests.open.values()):
            if not request.finished:
                self._end(request, EngineError(f"the model has failed: {error}"))

    def _check(self, prompt: Sequence[int], answer: int = 1, *, new: bool) -> None:
        """``answer``: tokens for which there must be room. ``new``: no engine has had it."""
        state, error = self._supervisor.state, self._supervisor.error
        if self._draining and new:
            raise ModelUnavailable(DRAINING)
        if state == "waiting":
            raise ModelUnavailable(f"the model cannot run now: {error}")
        if state not in ("ready", "recovering"):
            raise EngineError(f"the model is {state}" + (f": {error}" if error else ""))
        check_prompt(prompt, answer, self.max_context, self.vocab_size)

    def _send_due(self) -> None:
        if self._supervisor.state != "ready":
            return
        for request in self._requests.due():
            if request.params.constraint is not None and not self._taught:
                self._supervisor.send(Learn(self.tokenizer.to_json() or ""))
                self._taught = True
            for message in request.messages():
                self._supervisor.send(message)
            self._requests.sent(request)
            self._stop_timer(request)

    def _limit_wait(self, request: Request, seconds: float) -> None:
        """Until it is sent, if that is not sooner than ``seconds`` from its arrival or its interruption."""
        if request.number not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[request.number] = loop.call_later(seconds, self._give_up_waiting, request, seconds)

    def _give_up_waiting(self, request: Request, seconds: float) -> None:
        state, error = self._supervisor.state, self._supervisor.error
        reason = f": {error}" if error else ""
        self._end(request, ModelUnavailable(f"the model was not back within {seconds:g} s ({state}{reason})"))

    def _end(self, request: Request, error: FerruleError) -> None:
        self._forget(request)
        request.sent = False
        self._streams[request.number].put_nowait(error)

    def _forget(self, request: Request) -> None:
        self._stop_timer(request)
        self._requests.remove(request)

    def _stop_timer(self, request: Request) -> None:
        timer = self._timers.pop(request.number, None)
        if timer is not None:
            timer.cancel()


async def all_of(works: Iterable[Coroutine[None, None, Taken]]) -> list[Taken]:
    """Results of ``works``, done at once. Where one fails, or this is cancelled, the others are ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _taken(item: Token | Vector | FerruleError, kind: type[Taken]) -> Taken:
    if isinstance(item, FerruleError):
        raise item
    assert isinstance(item, kind)
    return item


async def start(
    options: EngineOptions,
    on_progress: ProgressCallback | None = None,
    *,
    lab: Lab | None = None,
    planner: Callable[[PreparedModel], Planner] | None = None,
    choose_plan: PlanChoice | None = None,
) -> LocalEngine:
    """Find, check, plan and load a model on ranks of this machine, or of a ``lab`` that is up, one host after another.

    ``choose_plan``: the plan of a model, by default that which ``options`` ask for. ``planner``: makes what places the
    ranks elsewhere, of what is known of the model by then. ``on_progress`` is called from the event loop. Raises
    `ModelError`, `PlanError` or `ConfigError` before any process is started where the files or the split are at fault,
    `EngineError` where a rank fails.
    """
    model = await prepared(options, choose_plan, on_progress)
    place = planner(model) if planner else LocalPlanner(lab, standby=options.standby).about(model)
    return await loaded(options, model, place, on_progress)


async def loaded(
    options: EngineOptions, model: PreparedModel, place: Planner, on_progress: ProgressCallback | None
) -> LocalEngine:
    """An engine whose ranks ``place`` places, when it is loaded; closed where it cannot be."""
    engine = LocalEngine(options, model, place)
    try:
        await engine.load(on_progress)
    except BaseException:
        await engine.close()
        raise
    return engine
