"""Send an answer, whole or as a stream, for as long as the client stays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ferrule.serve.answer.form import Collected, Counts, Form
from ferrule.serve.answer.sequences import Job, run_jobs
from ferrule.serve.answer.service import Service
from ferrule.serve.answer.transcript import Piece
from ferrule.serve.http.errors import ApiError, api_error
from ferrule.serve.http.exchange import current_exchange
from ferrule.serve.http.respond import respond

log = logging.getLogger(__name__)

T = TypeVar("T")

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Proxies must neither keep nor collect the events of a stream."""


class ClientGoneError(ApiError):
    """The client has closed its connection: what is answered now is dropped."""

    def __init__(self) -> None:
        super().__init__(499, "the client has closed the connection")


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down")


class Answer(Response):
    """The answer to a request for text. Everything happens when it is sent, and stops when the client leaves.

    Nothing is sent before the first piece is there, so that a request that cannot be served gets its proper status;
    but a stream whose first piece takes longer than ``service.ping_seconds`` begins with a sign of life.
    """

    def __init__(self, service: Service, jobs: Sequence[Job], form: Form, *, prompt_tokens: int, stream: bool) -> None:
        super().__init__()
        self._service = service
        self._jobs = jobs
        self._form = form
        self._prompt_tokens = prompt_tokens
        self._stream = stream
        self._made = [0] * len(jobs)
        self._cached: dict[int, int] = {}
        self._guesses = [(0, 0)] * len(jobs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        write = self._write_stream if self._stream else self._write_whole
        exchange = current_exchange()
        longest: float | None = scope["app"].state.max_queue_seconds
        with self._service.serving([job.of(exchange) for job in self._jobs], longest) as jobs:
            exchange.count(prompt=self._prompt_tokens)
            try:
                with self._service.in_time(jobs[0]):
                    async with aclosing(run_jobs(self._service.engine, self._service.vocabulary, jobs)) as pieces:
                        await while_wanted(receive, self._service.closing, write(pieces, scope, receive, noted))
            except ClientGoneError:
                log.debug("a client left before its answer was complete")
            except Exception as error:
                if not started:
                    raise
                await send({"type": "http.response.body", "body": self._form.failed(api_error(error))})

    async def _write_whole(self, pieces: AsyncIterator[Piece], scope: Scope, receive: Receive, send: Send) -> None:
        answers = [Collected() for _ in self._jobs]
        async for piece in pieces:
            self._count(piece)
            answers[piece.index].add(piece)
        body = self._form.whole(answers, self._counts(sum(answer.reasoning for answer in answers)))
        await respond(body)(scope, receive, send)

    async def _write_stream(self, pieces: AsyncGenerator[Piece], _scope: Scope, _receive: Receive, send: Send) -> None:
        reasoned = [0] * len(self._jobs)
        begun = False

        async def write(body: bytes) -> None:
            nonlocal begun
            if not begun:
                begun = True
                head = Response(media_type=self._form.media_type, headers=STREAM_HEADERS)
                headers = [(name, value) for name, value in head.raw_headers if name != b"content-length"]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})

        opened = False
        async with aclosing(with_silence(pieces, self._service.ping_seconds)) as heard:
            async for piece in heard:
                if piece is None:
                    await write(self._form.ping())
                    continue
                self._cached[piece.index] = piece.cached
                if not opened:
                    opened = True
                    await write(self._form.opening(self._counts()))
                self._count(piece)
                reasoned[piece.index] = piece.reasoning
                await write(self._form.events(piece))
        await send({"type": "http.response.body", "body": self._form.closing(self._counts(sum(reasoned)))})

    def _count(self, piece: Piece) -> None:
        current_exchange().count(completion=piece.tokens - self._made[piece.index])
        self._made[piece.index] = piece.tokens
        self._cached[piece.index] = piece.cached
        self._guesses[piece.index] = piece.guessed, piece.wrong

    def _counts(self, reasoning: int = 0) -> Counts:
        """Tokens so far, ``reasoning`` of them."""
        cached: dict[tuple[int, ...], int] = {}
        for number, count in self._cached.items():  # of several answers to a prompt one may have computed it
            prompt = self._jobs[number].prompt
            cached[prompt] = min(count, cached.get(prompt, count))
        guessed, wrong = (sum(each) for each in zip(*self._guesses, strict=True))
        return Counts(self._prompt_tokens, sum(self._made), reasoning, sum(cached.values()), guessed, wrong)


async def with_silence(items: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None]:
    """``items``, with a None between two of them for each ``seconds`` in which none came."""
    coming: asyncio.Task[T] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(_next(items))
            done, _ = await asyncio.wait([coming], timeout=seconds)
            if not done:
                yield None
                continue
            finished, coming = coming, None
            try:
                item = finished.result()
            except _EndError:
                return
            yield item
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


class _EndError(Exception):
    """There are no more items; a task cannot raise `StopAsyncIteration`."""


async def _next(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _EndError from None


async def while_wanted(receive: Receive, closing: asyncio.Event, work: Awaitable[T]) -> T:
    """The result of ``work``. It ends when the client leaves (`ClientGoneError`) or the server closes (`ApiError`)."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(until_gone(receive))
    closed = asyncio.create_task(closing.wait())
    tasks: list[asyncio.Future[Any]] = [task, gone, closed]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled():
            return task.result()
        if gone.done():
            raise ClientGoneError
        raise shutting_down()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
