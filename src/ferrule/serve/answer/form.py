"""Form of an endpoint's answers: what is sent of them, whole and in events. One for each API's kind of answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from ferrule.engine import FinishReason, PromptToken
from ferrule.serve.answer.transcript import Piece, TokenLogprob
from ferrule.serve.http.errors import ApiError
from ferrule.serve.tools.parts import Part, Text


@dataclass(frozen=True)
class Counts:
    """Tokens of a request's prompts, and of its answers so far. ``reasoning``: those of the answers that were such;
    ``cached``: those of the prompts that were computed for earlier requests; ``guessed``: those of the answers that
    speculation had guessed, which was ``wrong`` so many times."""

    prompt: int
    completion: int = 0
    reasoning: int = 0
    cached: int = 0
    guessed: int = 0
    wrong: int = 0


class Collected:
    """One answer put together from its pieces. ``said``: log-probabilities of what is no reasoning."""

    def __init__(self) -> None:
        self.text = ""
        self.parts: list[Part] = []
        self.called = False
        self.logprobs: list[TokenLogprob] = []
        self.said: list[TokenLogprob] = []
        self.tokens = 0
        self.reasoning = 0
        self.finish: FinishReason | None = None
        self.stop: str | None = None
        self.prompt: tuple[PromptToken, ...] = ()

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.parts.extend(piece.parts)
        self.called = piece.called
        self.logprobs.extend(piece.logprobs)
        if any(isinstance(part, Text) for part in piece.parts):
            self.said.extend(piece.logprobs)
        self.tokens = piece.tokens
        self.reasoning = piece.reasoning
        self.finish = piece.finish
        self.stop = piece.stop
        self.prompt = piece.prompt or self.prompt


class Form(ABC):
    """Form of one request's answers. An object may keep state: it serves a single answer, whole or as a stream, whose
    bytes are those of `opening`, of `events` for each piece, and of `closing` or `failed`, in this order; `ping` may
    come anywhere between, also before `opening`."""

    media_type: ClassVar[str] = "text/event-stream"
    """Of a stream."""

    @abstractmethod
    def whole(self, answers: Sequence[Collected], counts: Counts) -> msgspec.Struct:
        """The answer to a request without a stream, as JSON."""

    @abstractmethod
    def opening(self, counts: Counts) -> bytes:
        """What comes before the first piece."""

    @abstractmethod
    def events(self, piece: Piece) -> bytes: ...

    @abstractmethod
    def closing(self, counts: Counts) -> bytes: ...

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that had begun: the status has been sent, so this is the only place left to say it."""

    def ping(self) -> bytes:
        """Sign of life while a long prompt is computed: a comment, which clients skip."""
        return b": ping\n\n"


def sse(event: msgspec.Struct, name: str | None = None) -> bytes:
    """``event`` as a server-sent event (WHATWG HTML, 9.2), with its ``name`` where the API has names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(event) + b"\n\n"
