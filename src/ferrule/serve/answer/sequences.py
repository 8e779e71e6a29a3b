"""Run the sequences of one request through the engine, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from ferrule.engine import Engine, ImageInput, SamplingParams, Token
from ferrule.errors import EngineError
from ferrule.serve.answer.text import Vocabulary
from ferrule.serve.answer.transcript import Piece, Transcript
from ferrule.serve.openai.sampling import derived_seed
from ferrule.serve.tools.reading import ChatReading, Reading


@dataclass(frozen=True)
class Job:
    """One sequence to generate: answer ``index`` of a request.

    ``continues``: the answer continues the prompt's text (a completion) rather than being a text of its own (a chat),
    so that its first word keeps the space before it. ``chat``: how the answer is read, if it is one of a chat.
    ``heard`` is told every token as it comes. ``images``: of the prompt.
    """

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    stops: tuple[str, ...] = ()
    continues: bool = False
    chat: ChatReading | None = None
    heard: Callable[[Token], None] | None = None
    images: tuple[ImageInput, ...] = ()


def choices(params: SamplingParams, count: int) -> list[SamplingParams]:
    """``params`` for each of ``count`` answers to one prompt, each with its own seed where one is given."""
    return [replace(params, seed=derived_seed(params.seed, choice)) for choice in range(count)]


async def run_job(engine: Engine, vocabulary: Vocabulary, job: Job) -> AsyncGenerator[Piece, None]:
    """The pieces of one answer. The engine's sequence ends with this generator, for whatever reason that ends."""
    if job.params.max_tokens == 0 and job.params.prompt_logprobs is not None:
        async with aclosing(engine.generate(job.prompt, replace(job.params, max_tokens=1))) as tokens:
            async for token in tokens:  # of which only the prompt is wanted
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
        async for token in tokens:
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
