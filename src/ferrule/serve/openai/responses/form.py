"""Form of a response: one object for the whole, or named events whose last one has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import structs

from ferrule.engine import FinishReason
from ferrule.serve.answer.form import Collected, Counts, Form, sse
from ferrule.serve.answer.transcript import Piece
from ferrule.serve.http.errors import ApiError
from ferrule.serve.openai.responses.objects import Event, Failed, Incomplete, ResponseBody, response_usage
from ferrule.serve.openai.responses.output import Output
from ferrule.serve.openai.responses.tools import Offered
from ferrule.serve.tools.parts import Text


@dataclass(frozen=True)
class FormOptions:
    """What an answer's form depends on. ``begun``: the response as its first event has it. ``keep`` takes the finished
    one."""

    begun: ResponseBody
    offered: Offered
    summary: bool
    logprobs: bool
    keep: Callable[[ResponseBody], None]


class ResponseForm(Form):
    def __init__(self, options: FormOptions) -> None:
        self._options = options
        self._output = Output(options.offered, self._tell, summary=options.summary, logprobs=options.logprobs)
        self._told: list[bytes] = []
        self._sequence = 0
        self._opened = False
        self._finish: FinishReason | None = None

    def whole(self, answers: Sequence[Collected], counts: Counts) -> msgspec.Struct:
        (answer,) = answers
        entries = answer.said
        for part in answer.parts:
            self._output.add(part, entries)
            entries = [] if isinstance(part, Text) else entries
        self._end(answer.finish)
        return self._finished(counts)

    def opening(self, counts: Counts) -> bytes:
        return b"" if self._opened else self._begin()

    def ping(self) -> bytes:
        """An event rather than a comment, of which clients' libraries do not tell: Codex gives up after five minutes
        without an event."""
        if not self._opened:
            return self._begin()
        self._tell(Event("response.in_progress", response=self._options.begun))
        return self._take()

    def _begin(self) -> bytes:
        self._opened = True
        self._tell(Event("response.created", response=self._options.begun))
        self._tell(Event("response.in_progress", response=self._options.begun))
        return self._take()

    def events(self, piece: Piece) -> bytes:
        entries = piece.logprobs
        for part in piece.parts:
            self._output.add(part, entries)
            entries = () if isinstance(part, Text) else entries
        if piece.finish is not None:
            self._end(piece.finish)
        return self._take()

    def closing(self, counts: Counts) -> bytes:
        response = self._finished(counts)
        self._tell(Event(f"response.{response.status}", response=response))
        return self._take()

    def failed(self, error: ApiError) -> bytes:
        """The error by itself, as generic clients look for it, and the failed response, as agents do."""
        code = {400: "invalid_prompt", 429: "rate_limit_exceeded"}.get(error.status, "server_error")
        self._tell(Event("error", code=error.code, message=error.message, param=error.param))
        told = Failed(code, error.message)
        response = structs.replace(self._options.begun, status="failed", output=self._output.items, error=told)
        self._tell(Event("response.failed", response=response))
        return self._take()

    def _end(self, finish: FinishReason | None) -> None:
        self._finish = finish
        self._output.close("incomplete" if finish == "length" else "completed")

    def _finished(self, counts: Counts) -> ResponseBody:
        response = structs.replace(
            self._options.begun,
            status="completed",
            output=self._output.items,
            usage=response_usage(counts),
            completed_at=int(time.time()),
        )
        if self._finish == "length":
            cut = Incomplete("max_output_tokens")
            response = structs.replace(response, status="incomplete", incomplete_details=cut, completed_at=None)
        self._options.keep(response)
        return response

    def _tell(self, event: Event) -> None:
        event.sequence_number = self._sequence
        self._sequence += 1
        self._told.append(sse(event, event.type))

    def _take(self) -> bytes:
        told, self._told = b"".join(self._told), []
        return told
