"""The requests of an engine, kept so that they go on after a crash. Bookkeeping, without I/O.

A request whose answer was being made when the ranks crashed is sent again with the tokens that it has got. One that was
there in `POISON` crashes in a row is given up. So that no other request has to go with it, those that were there in
one crash less (suspects) go on one at a time, and all others after them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ferrule.engine.messages import Add, Attach, Embed, Hand, attached
from ferrule.engine.types import ImageInput, PromptToken, SamplingParams
from ferrule.errors import EngineError, RequestError
from ferrule.model import PoolingMode

DRAINING = "the model takes no more requests: it is being stopped"
_LOOK_SECONDS = 0.02
POISON = 3
"""A request that was being answered in so many crashes in a row is given up."""
CALM_TOKENS = 64
"""So many tokens after it was sent again, a request had no part in the last crash."""


@dataclass(frozen=True)
class History:
    """Past of a request that another engine had: the tokens ``made``, and the ``crashes`` in a row that it was in."""

    made: tuple[int, ...] = ()
    crashes: int = 0


class ReleasedError(EngineError):
    """An engine that has lost its ranks gives a request away, which was in so many ``crashes`` in a row."""

    def __init__(self, crashes: int) -> None:
        super().__init__("the request goes on elsewhere")
        self.crashes = crashes


@dataclass
class Request:
    """``pooling``: it asks for a vector, not for tokens. ``scores``: of the prompt's tokens but the first, as far as
    they are asked for and known. ``images``: of its prompt. ``made``: the tokens of its answer so far. ``hand``: what
    of its prompt goes to other ranks. ``sent``: the ranks have it. ``since_sent``: tokens since then."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    pooling: PoolingMode | None = None
    images: tuple[ImageInput, ...] = ()
    hand: Hand | None = None
    scores: list[PromptToken] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    sent: bool = False
    finished: bool = False
    crashes: int = 0
    since_sent: int = 0

    @property
    def suspect(self) -> bool:
        return self.crashes >= POISON - 1

    def messages(self) -> Iterator[Attach | Add | Embed]:
        """Orders to the driver."""
        if self.pooling is not None:
            yield Embed(self.number, self.prompt, self.pooling, self.params.turn)
            return
        if self.images:
            yield from attached(self.number, self.images)
        made, scored = tuple(self.made), len(self.scores)
        yield Add(self.number, self.prompt, made, self.params, scored, bool(self.images), self.hand)


class Requests:
    """Every request from its arrival to its last token. Numbers are never used twice."""

    def __init__(self) -> None:
        self.open: dict[int, Request] = {}
        self._last = 0

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        pooling: PoolingMode | None = None,
        images: Sequence[ImageInput] = (),
        history: History | None = None,
        hand: Hand | None = None,
    ) -> Request:
        self._last += 1
        request = self.open[self._last] = Request(self._last, tuple(prompt), params, pooling, tuple(images), hand)
        if history is not None:
            request.made, request.crashes = [*history.made], history.crashes
        return request

    def remove(self, request: Request) -> None:
        """It has ended, for whatever reason; removing it twice does no harm."""
        self.open.pop(request.number, None)

    async def ended_within(self, seconds: float) -> bool:
        """Wait until none is open, so many seconds at most. Whether none is."""
        deadline = time.monotonic() + seconds
        while self.open and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        return not self.open

    @property
    def unsent(self) -> int:
        return sum(not request.sent for request in self.open.values())

    def movable(self) -> list[Request]:
        """Those that no rank has, and that another engine may go on with: no suspects, which go on by themselves."""
        return [each for each in self.open.values() if not (each.sent or each.finished or each.suspect)]

    def due(self) -> list[Request]:
        """The requests to send now, oldest first."""
        suspects = [request for request in self.open.values() if request.suspect and not request.finished]
        if any(request.sent for request in suspects):
            return []
        ready = suspects[:1] or self.open.values()
        return [request for request in ready if not request.sent]

    def sent(self, request: Request) -> None:
        request.sent, request.since_sent = True, 0

    def took(self, request: Request, token: int, *, last: bool) -> bool:
        """Note a token of its answer. True if others may be due by that: it was a suspect and is none any more."""
        request.made.append(token)
        return self._advanced(request, last=last)

    def embedded(self, request: Request) -> bool:
        """Its vector has come. As `took`."""
        return self._advanced(request, last=True)

    def _advanced(self, request: Request, *, last: bool) -> bool:
        request.since_sent += 1
        request.finished = last
        cleared = request.suspect and (last or request.since_sent >= CALM_TOKENS)
        if request.since_sent >= CALM_TOKENS:
            request.crashes = 0
        return cleared

    def scored(self, request: Request, first: int, tokens: Sequence[PromptToken]) -> None:
        """Note what is said of its prompt from token ``first`` + 1 on, as far as it is new."""
        request.scores += tokens[max(0, len(request.scores) - first) :]

    def interrupted(self, *, crashed: bool) -> list[Request]:
        """The ranks are gone. Returns those that are given up; the others are to be sent again.

        ``crashed``: they crashed, so that a request may be at fault.
        """
        given_up = []
        for request in list(self.open.values()):
            if not request.sent or request.finished:
                continue
            request.sent = False
            request.crashes += crashed
            if request.crashes >= POISON:
                given_up.append(request)
                self.remove(request)
        return given_up


def check_prompt(prompt: Sequence[int], answer: int, context: int, vocabulary: int) -> None:
    """Raises `RequestError` where ``prompt`` and an ``answer`` of so many tokens have no room in the ``context``, and
    for tokens outside the ``vocabulary``."""
    if not prompt:
        raise RequestError("the prompt is empty", param="prompt")
    if len(prompt) + answer > context:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, but this model's context is {context} tokens for "
            "prompt and answer together; shorten the prompt",
            code="context_length_exceeded",
        )
    strange = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if strange is not None:
        raise RequestError(f"token {strange} is outside the vocabulary of {vocabulary}", param="prompt")
