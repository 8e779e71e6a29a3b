"""A model that a guest runs, as an engine: its requests, which outlive the guest's processes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ferrule.engine.guests.asking import pieces
from ferrule.engine.guests.guest import Guest, Launch, Piece
from ferrule.engine.guests.running import GuestLostError, Running
from ferrule.engine.guests.supervisor import GuestSupervisor
from ferrule.engine.host.local import INTERRUPTED_SECONDS, NEW_SECONDS, TEXT_ONLY
from ferrule.engine.host.placement import Loss
from ferrule.engine.host.prepare import PreparedModel
from ferrule.engine.host.requests import DRAINING, POISON, Request, Requests, check_prompt
from ferrule.engine.turn import FIRST_COME, Turn
from ferrule.engine.types import Health, ImageInput, ImagePrompt, RankInfo, SamplingParams, State, Token
from ferrule.errors import EngineError, FerruleError, ModelUnavailable, RequestError
from ferrule.model import PoolingMode

if TYPE_CHECKING:
    from ferrule.engine.types import Vector

SEEDS = 1 << 31
"""Seeds that all guests take are below this."""
NOTICE_SECONDS = 5.0
"""In which the end of a guest that has hung up must be noticed; else the connection alone was lost."""


@dataclass
class Open:
    """A request that has not ended. ``wake``: it may have been sent, or has an ``error``. ``interrupted``: the guest
    that it was sent to is gone. ``hangs``: connections that were lost although the guest went on."""

    request: Request
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    error: FerruleError | None = None
    timer: asyncio.TimerHandle | None = None
    hangs: int = 0

    def end(self, error: FerruleError) -> None:
        self.error = error
        self.wake.set()
        self.interrupted.set()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class GuestEngine:
    """`ferrule.engine.types.Engine` over the processes of a guest. Made by `ferrule.engine.guests.start`."""

    def __init__(self, guest: Guest, launch: Launch, model: PreparedModel) -> None:
        self.abilities = guest.abilities
        self.name = launch.name
        self.created = int(time.time())
        self.spec, self.plan = model.spec, launch.plan
        self.vocab_size = model.spec.vocab_size
        self.max_context = launch.room.context
        self.tokenizer = model.tokenizer
        self.embedding = model.embedding
        self.default_sampling = model.default_sampling
        self.image_marker: str | None = None
        self.adapters: tuple[str, ...] = ()
        self.ranks: tuple[RankInfo, ...] = ()
        self._guest, self._launch, self._ends = guest, launch, model.end_tokens
        self._most = launch.room.sequences
        self._requests = Requests()
        self._open: dict[int, Open] = {}
        self._draining = False
        self._supervisor = GuestSupervisor(guest, launch, self)

    async def load(self) -> None:
        """Wait until the guest is ready. Raises what is wrong where it is not; no process is left then."""
        await self._supervisor.start()

    async def read_images(self, text: str, images: Sequence[bytes], *, add_special_tokens: bool = False) -> ImagePrompt:
        """See `ferrule.engine.types.Engine.read_images`."""
        raise RequestError(TEXT_ONLY, code="unsupported")

    async def embed(
        self, prompts: Sequence[Sequence[int]], pooling: PoolingMode | None = None, *, turn: Turn = FIRST_COME
    ) -> list[Vector]:
        """See `ferrule.engine.types.Engine.embed`; no guest makes vectors yet."""
        raise self.abilities.lacks("input", "embeddings")

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, images: Sequence[ImageInput] = ()
    ) -> AsyncGenerator[Token, None]:
        """See `ferrule.engine.types.Engine.generate`. After a crash the guest is given the prompt with the tokens that
        it has made: a greedy answer goes on as it would have, a sampled one with other random numbers, which are the
        same whenever it goes on from there."""
        self.abilities.check(params, images)
        self._check(prompt)
        seed = secrets.randbelow(SEEDS) if params.seed is None else params.seed % SEEDS
        most = min(params.max_tokens or self.max_context, self.max_context - len(prompt))
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._ends)
        request = self._requests.add(prompt, replace(params, seed=seed))
        found = self._open[request.number] = Open(request)
        try:
            while True:
                running = await self._turn_of(found)
                try:
                    async with aclosing(pieces(running, request, most)) as made:
                        async for piece in made:
                            for token in self._ended(piece, request, most, ends):
                                if self._requests.took(request, token.id, last=token.finish is not None):
                                    self._send_due()
                                yield token
                                if token.finish is not None:
                                    return
                except (GuestLostError, ModelUnavailable) as error:
                    await self._interrupted(found, error)
        finally:
            self._remove(found)

    def health(self) -> Health:
        told = self._supervisor
        sent = sum(each.request.sent for each in self._open.values())
        error = str(told.error) if told.error else None
        return Health(told.state, error, sent, len(self._open) - sent, told.since, told.recoveries, told.last)

    @property
    def state(self) -> State:
        """As `health` tells it."""
        return self._supervisor.state

    async def drain(self, seconds: float) -> bool:
        """See `ferrule.engine.types.Engine.drain`."""
        self._draining = True
        return await self._requests.ended_within(seconds)

    async def close(self) -> None:
        """See `ferrule.engine.types.Engine.close`."""
        await self._supervisor.close()
        self._end_all(EngineError("the engine was closed"))

    def went_up(self, running: Running) -> int:
        self.max_context = running.context
        self.ranks = self._guest.ranks(self._launch, running.pid)
        for each in self._open.values():
            each.stop_timer()
        going_on = sum(bool(each.request.made) for each in self._open.values())
        self._send_due()
        return going_on

    def went_down(self, loss: Loss) -> bool:
        sent = [each for each in self._open.values() if each.request.sent]
        given_up = self._requests.interrupted(crashed=loss.crashed)
        for request in given_up:
            self._open[request.number].end(
                RequestError(
                    f"this request was being answered in {request.crashes} crashes in a row, so it is given up; "
                    f"the last one: {loss.error}",
                    code="request_crashes_model",
                )
            )
        for each in sent:
            each.interrupted.set()
        for each in self._open.values():
            if each.error is None and not each.request.finished:
                self._limit_wait(each, INTERRUPTED_SECONDS)
        return bool(given_up)

    def failed(self, error: FerruleError) -> None:
        self._end_all(EngineError(f"the model has failed: {error}"))

    def _check(self, prompt: Sequence[int]) -> None:
        state, error = self._supervisor.state, self._supervisor.error
        if self._draining:
            raise ModelUnavailable(DRAINING)
        if state == "waiting":
            raise ModelUnavailable(f"the model cannot run now: {error}")
        if state not in ("ready", "recovering"):
            raise EngineError(f"the model is {state}" + (f": {error}" if error else ""))
        check_prompt(prompt, 1, self.max_context, self.vocab_size)

    async def _turn_of(self, found: Open) -> Running:
        """Wait until it is sent. Raises why it never is."""
        if self._supervisor.state != "ready":
            self._limit_wait(found, INTERRUPTED_SECONDS if found.request.made else NEW_SECONDS)
        self._send_due()
        while found.error is None and not found.request.sent:
            found.wake.clear()
            await found.wake.wait()
        if found.error is not None:
            raise found.error
        assert self._supervisor.running is not None
        return self._supervisor.running

    def _send_due(self) -> None:
        """As many as the guest takes at once, by priority and then in the order in which they came."""
        if self._supervisor.running is None:
            return
        room = self._most - sum(each.request.sent for each in self._open.values())
        due = sorted(self._requests.due(), key=lambda each: (each.params.turn.priority, each.number))
        for request in due[: max(0, room)]:
            found = self._open[request.number]
            self._requests.sent(request)
            found.stop_timer()
            found.interrupted.clear()
            found.wake.set()

    async def _interrupted(self, found: Open, error: EngineError) -> None:
        """The guest hung up on it: because it is gone, which is noticed now, or it was the connection."""
        try:
            async with asyncio.timeout(NOTICE_SECONDS):
                await found.interrupted.wait()
        except TimeoutError:
            found.hangs += 1
            found.request.sent = False
            if found.hangs >= POISON:
                raise EngineError(f"{error}, {found.hangs} times for this request, although it runs") from None

    def _ended(self, piece: Piece, request: Request, most: int, ends: frozenset[int]) -> Iterator[Token]:
        """The tokens of ``piece``, the last of the answer with the reason for its end."""
        left = len(piece.tokens)
        for token in piece.tokens:
            left -= 1
            finish = None if left else piece.finish
            if token.id in ends:
                finish = "stop"
            elif len(request.made) + 1 >= most:
                finish = "length"
            yield replace(token, finish=finish)
            if finish is not None:
                return
        if piece.finish == "stop":  # at an end token that the guest does not tell
            yield Token(min(self._ends, default=self.tokenizer.eos_token_id or 0), finish="stop")
        elif piece.finish is not None:
            raise EngineError(
                f"{self._guest.name} ended an answer after {len(request.made)} tokens, although it has room for {most}"
            )

    def _limit_wait(self, found: Open, seconds: float) -> None:
        if found.timer is None:
            loop = asyncio.get_running_loop()
            found.timer = loop.call_later(seconds, self._give_up_waiting, found, seconds)

    def _give_up_waiting(self, found: Open, seconds: float) -> None:
        reason = f": {self._supervisor.error}" if self._supervisor.error else ""
        found.end(ModelUnavailable(f"the model was not back within {seconds:g} s ({self.state}{reason})"))

    def _end_all(self, error: FerruleError) -> None:
        for each in self._open.values():
            if each.error is None and not each.request.finished:
                each.end(error)

    def _remove(self, found: Open) -> None:
        found.stop_timer()
        self._requests.remove(found.request)
        self._open.pop(found.request.number, None)
        self._send_due()  # others may have waited for this one
