"""Run the sequences of one request through the engine, all at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from ferrule.engine import Engine, ImageInput, SamplingParams, Token
from ferrule.errors import EngineError
from ferrule.serve.answer.text import Vocabulary
from ferrule.serve.answer.transcript import Piece, Transcript
from ferrule.serve.answer.turns import NOTHING_ASKED, TurnAsked, granted
from ferrule.serve.http.errors import ApiError
from ferrule.serve.http.exchange import Exchange
from ferrule.serve.openai.sampling import derived_seed
from ferrule.serve.tools.reading import ChatReading, Reading


@dataclass(frozen=True)
class Job:
    """One sequence to generate: answer ``index`` of a request.

    ``continues``: the answer continues the prompt's text (a completion) rather than being a text of its own (a chat),
    so that its first word keeps the space before it. ``chat``: how the answer is read, if it is one of a chat.
    ``heard`` is told every token as it comes. ``images``: of the prompt.
    ``asked``: which turn its request wants; ``begin_by``: when its first token must have come, of the monotonic clock.
    """

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    stops: tuple[str, ...] = ()
    continues: bool = False
    chat: ChatReading | None = None
    heard: Callable[[Token], None] | None = None
    images: tuple[ImageInput, ...] = ()
    asked: TurnAsked = NOTHING_ASKED
    begin_by: float | None = None

    def of(self, exchange: Exchange) -> Job:
        """With the turn that is granted to its request. Raises `ApiError` as `granted` does."""
        asked = self.asked
        by = None if asked.timeout is None else exchange.begun + asked.timeout
        return replace(self, params=replace(self.params, turn=granted(asked, exchange.caller)), begin_by=by)

    @property
    def priority(self) -> int:
        return self.params.turn.priority

    def followed(self, heard: Callable[[Token], None]) -> Job:
        """With ``heard`` told every token, too."""
        before = self.heard

        def both(token: Token) -> None:
            heard(token)
            if before is not None:
                before(token)

        return replace(self, heard=both)


def choices(params: SamplingParams, count: int) -> list[SamplingParams]:
    """``params`` for each of ``count`` answers to one prompt, each with its own seed where one is given."""
    return [replace(params, seed=derived_seed(params.seed, choice)) for choice in range(count)]


class QueueTimeoutError(ApiError):
    """A request's first token cannot come, or did not, in the time that it gave. ``wait``: seconds until it came, if
    the request were sent now; ``left``: those that it has."""

    def __init__(self, wait: float, left: float) -> None:
        super().__init__(
            429,
            "queue_timeout: the first token does not come in this time, since other requests are ahead of it",
            code="queue_timeout",
            param="queue_timeout",
            retry_after=max(1, math.ceil(wait - left)),
        )


class LateError(Exception):
    """The first token of a sequence did not come in time."""


async def begun_by(tokens: AsyncGenerator[Token], moment: float | None) -> AsyncGenerator[Token]:
    """``tokens``. Raises `LateError` where none has come by ``moment``, of the monotonic clock."""
    if moment is not None:
        try:
            async with asyncio.timeout(moment - time.monotonic()):
                first = await anext(tokens, None)
        except TimeoutError:
            raise LateError from None
        if first is not None:
            yield first
    async for token in tokens:
        yield token


async def run_job(engine: Engine, vocabulary: Vocabulary, job: Job) -> AsyncGenerator[Piece, None]:
    """The pieces of one answer. The engine's sequence ends with this generator, for whatever reason that ends."""
    if job.params.max_tokens == 0 and job.params.prompt_logprobs is not None:
        async with aclosing(engine.generate(job.prompt, replace(job.params, max_tokens=1))) as tokens:
            async for token in begun_by(tokens, job.begin_by):  # of which only the prompt is wanted
                yield Piece(job.index, "", (), 0, "length", prompt=token.prompt)
        return
    if job.params.max_tokens == 0:
        yield Piece(job.index, "", (), 0, "length")
        return
    context = job.prompt if job.continues else ()
    shown = job.chat.dialect.shown(own=job.chat.own) if job.chat is not None else {}
    transcript = Transcript(vocabulary, job.stops, index=job.index, context=context, shown=shown)
    reading = Reading(job.chat) if job.chat is not None else None
    finished = False
    async with aclosing(engine.generate(job.prompt, job.params, job.images)) as tokens:
        async for token in begun_by(tokens, job.begin_by):
            if job.heard is not None:
                job.heard(token)
            if token.prompt is not None:
                yield Piece(job.index, "", (), 0, None, prompt=token.prompt)
            piece = transcript.push(token)
            if piece is not None and reading is not None:
                piece = reading.push(piece)
            if piece is not None:
                yield piece
                finished = piece.finish is not None
            if finished and token.finish is None:
                break  # a stop string or a complete call, of which the engine knows nothing
    if not finished:
        raise EngineError("the engine ended a sequence without saying why; please report this with the server's log")


async def run_jobs(engine: Engine, vocabulary: Vocabulary, jobs: Sequence[Job]) -> AsyncGenerator[Piece, None]:
    """The pieces of all ``jobs`` as they come. One that fails ends the others and raises its error."""
    if len(jobs) == 1:
        async with aclosing(run_job(engine, vocabulary, jobs[0])) as pieces:
            async for piece in pieces:
                yield piece
        return
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

    async def pump(job: Job) -> None:
        try:
            async with aclosing(run_job(engine, vocabulary, job)) as pieces:
                async for piece in pieces:
                    queue.put_nowait(piece)
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - it is raised again below, where the pieces are taken
            queue.put_nowait(error)

    pumps = [asyncio.create_task(pump(job)) for job in jobs]
    left = len(jobs)
    try:
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
