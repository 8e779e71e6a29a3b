"""Send an answer, whole or as server-sent events, for as long as the client stays."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec
from fastapi.responses import Response
from msgspec import UNSET
from starlette.types import Message, Receive, Scope, Send

from ferrule.engine import Engine
from ferrule.serve.errors import ApiError, api_error
from ferrule.serve.identity import Identity
from ferrule.serve.objects import AnswerBody, ChatChoice, ErrorBody, TextChoice, Usage, respond
from ferrule.serve.prompt import TokenizerPool
from ferrule.serve.sequences import Job, run_jobs
from ferrule.serve.structured.grammars import Grammars
from ferrule.serve.text import Vocabulary
from ferrule.serve.tools.families import Dialect
from ferrule.serve.tools.parts import Part
from ferrule.serve.transcript import Piece, TokenLogprob

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SEQUENCES = 256
"""Sequences that may be running or waiting at once over all requests; beyond that clients are asked to come back."""

EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Proxies must neither keep nor collect the events of a stream."""


class Service:
    """Service that the endpoints of one app share: the engine, the tokenizers, and admission of requests.
    ``dialect``: how the model writes reasoning and tool calls."""

    def __init__(self, engine: Engine, dialect: Dialect, *, max_sequences: int = MAX_SEQUENCES) -> None:
        self.engine = engine
        self.dialect = dialect
        self.vocabulary = Vocabulary(engine.tokenizer)
        self.grammars = Grammars(engine)
        self.reading = TokenizerPool()
        self.closing = asyncio.Event()
        self._max_sequences = max_sequences
        self._sequences = 0

    def close(self) -> None:
        """End every answer that is being sent, and refuse new ones."""
        self.closing.set()
        self.reading.close()

    @contextmanager
    def admit(self, sequences: int) -> Iterator[None]:
        """Hold places for ``sequences``. Raises `ApiError` 503 when the engine does not run, 429 when it is busy.

        While ranks are being restarted the engine itself says how long requests may wait.
        """
        health = self.engine.health()
        if health.state == "failed":
            raise ApiError(503, f"the model has failed: {health.error}", code="engine_error")
        if health.state in ("loading", "closed"):
            raise ApiError(503, f"the model is {health.state}", code="not_ready", retry_after=1)
        if sequences > self._max_sequences:
            raise ApiError(400, f"{sequences} sequences in one request; at most {self._max_sequences}", param="n")
        if self._sequences + sequences > self._max_sequences:
            raise ApiError(
                429,
                f"{self._sequences} sequences are being served, of at most {self._max_sequences}; try again later",
                code="too_many_requests",
                retry_after=1,
            )
        self._sequences += sequences
        try:
            yield
        finally:
            self._sequences -= sequences


class Collected:
    """One answer put together from its pieces."""

    def __init__(self) -> None:
        self.text = ""
        self.parts: list[Part] = []
        self.called = False
        self.logprobs: list[TokenLogprob] = []
        self.tokens = 0
        self.finish: str | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.parts.extend(piece.parts)
        self.called = piece.called
        self.logprobs.extend(piece.logprobs)
        self.tokens = piece.tokens
        self.finish = piece.finish


@dataclass(frozen=True)
class Form(ABC):
    """Form of an endpoint's answers. ``event_kind``: what the objects of a stream are called."""

    event_kind: ClassVar[str]
    identity: Identity
    include_usage: bool

    @abstractmethod
    def whole(self, answers: Sequence[Collected], usage: Usage) -> AnswerBody: ...

    @abstractmethod
    def opening(self) -> list[AnswerBody]:
        """The events before the first piece."""

    @abstractmethod
    def events(self, piece: Piece) -> list[AnswerBody]: ...

    def event(self, choice: ChatChoice | TextChoice) -> AnswerBody:
        return self.identity.body(self.event_kind, [choice], None if self.include_usage else UNSET)

    def closing(self, usage: Usage) -> AnswerBody:
        """The event that carries the usage counts."""
        return self.identity.body(self.event_kind, [], usage)


class ClientGoneError(ApiError):
    """The client has closed its connection: what is answered now is dropped."""

    def __init__(self) -> None:
        super().__init__(499, "the client has closed the connection")


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down")


class Answer(Response):
    """The answer to a request for text. Everything happens when it is sent, and stops when the client leaves.

    Nothing is sent before the first piece is there, so that a request that cannot be served gets its proper status.
    """

    def __init__(self, service: Service, jobs: Sequence[Job], form: Form, *, prompt_tokens: int, stream: bool) -> None:
        super().__init__()
        self._service = service
        self._jobs = jobs
        self._form = form
        self._prompt_tokens = prompt_tokens
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        write = self._write_events if self._stream else self._write_whole
        with self._service.admit(len(self._jobs)):
            try:
                async with aclosing(run_jobs(self._service.engine, self._service.vocabulary, self._jobs)) as pieces:
                    await while_wanted(receive, self._service.closing, write(pieces, scope, receive, noted))
            except ClientGoneError:
                log.debug("a client left before its answer was complete")
            except Exception as error:
                if not started:
                    raise
                # The status has been sent; the stream itself is the only place left to say it.
                await send(event_message(api_error(error).body))
                await send({"type": "http.response.body", "body": b""})

    async def _write_whole(self, pieces: AsyncIterator[Piece], scope: Scope, receive: Receive, send: Send) -> None:
        answers = [Collected() for _ in self._jobs]
        async for piece in pieces:
            answers[piece.index].add(piece)
        body = self._form.whole(answers, self._usage(sum(answer.tokens for answer in answers)))
        await respond(body)(scope, receive, send)

    async def _write_events(self, pieces: AsyncIterator[Piece], scope: Scope, receive: Receive, send: Send) -> None:
        made = [0] * len(self._jobs)
        started = False
        async for piece in pieces:
            if not started:
                started = True
                head = Response(media_type="text/event-stream", headers=EVENT_HEADERS)
                headers = [(name, value) for name, value in head.raw_headers if name != b"content-length"]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                for event in self._form.opening():
                    await send(event_message(event))
            made[piece.index] = piece.tokens
            for event in self._form.events(piece):
                await send(event_message(event))
        if self._form.include_usage:
            await send(event_message(self._form.closing(self._usage(sum(made)))))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def _usage(self, completion_tokens: int) -> Usage:
        return Usage(self._prompt_tokens, completion_tokens, self._prompt_tokens + completion_tokens)


def event_message(event: AnswerBody | ErrorBody) -> Message:
    """``event`` as a piece of a response's body, in the form of server-sent events."""
    return {"type": "http.response.body", "body": b"data: " + msgspec.json.encode(event) + b"\n\n", "more_body": True}


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
