"""What both of OpenAI's older kinds of answers share: one object for the whole answer and for each event."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import UNSET

from ferrule.serve.answer.form import Counts, Form, sse
from ferrule.serve.answer.transcript import Piece
from ferrule.serve.http.errors import ApiError
from ferrule.serve.openai.identity import Identity
from ferrule.serve.openai.objects import AnswerBody, ChatChoice, TextChoice, Usage


@dataclass(frozen=True)
class OpenAIForm(Form):
    """``event_kind``: what the objects of a stream are called."""

    event_kind: ClassVar[str]
    identity: Identity
    include_usage: bool

    @abstractmethod
    def first(self) -> Sequence[AnswerBody]:
        """The events before the first piece."""

    @abstractmethod
    def next(self, piece: Piece) -> Sequence[AnswerBody]: ...

    @abstractmethod
    def usage(self, counts: Counts) -> Usage: ...

    def opening(self, counts: Counts) -> bytes:
        return b"".join(map(sse, self.first()))

    def events(self, piece: Piece) -> bytes:
        return b"".join(map(sse, self.next(piece)))

    def closing(self, counts: Counts) -> bytes:
        last = sse(self.identity.body(self.event_kind, [], self.usage(counts))) if self.include_usage else b""
        return last + b"data: [DONE]\n\n"

    def failed(self, error: ApiError) -> bytes:
        return sse(error.body())

    def event(self, choice: ChatChoice | TextChoice) -> AnswerBody:
        return self.identity.body(self.event_kind, [choice], None if self.include_usage else UNSET)
