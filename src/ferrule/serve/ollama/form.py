"""Answers as lines of JSON (NDJSON), each of which has a piece of the text."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from ferrule.engine import Token
from ferrule.serve.answer.form import Collected, Counts, Form
from ferrule.serve.answer.transcript import Piece
from ferrule.serve.answer.transcript import TokenLogprob as Logprob
from ferrule.serve.http.error_forms import OllamaErrorBody
from ferrule.serve.http.errors import ApiError
from ferrule.serve.ollama.objects import (
    CalledFunction,
    ChatLine,
    GenerateLine,
    Message,
    TextLine,
    TokenLogprob,
    ToolCall,
)
from ferrule.serve.tools.parts import Call, Part, Reasoning, Text

NDJSON = "application/x-ndjson"


def line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


@dataclass
class Watch:
    """Times of one request, by a clock of nanoseconds, and the tokens of its answer. ``begun``: when it came;
    ``loaded``: when its model was there; ``read``: when its prompt was tokenized."""

    begun: int = field(default_factory=time.monotonic_ns)
    loaded: int = 0
    read: int = 0
    first: int = 0
    tokens: list[int] = field(default_factory=list)

    def loaded_now(self) -> None:
        self.loaded = time.monotonic_ns()

    def read_now(self) -> None:
        self.read = time.monotonic_ns()

    def heard(self, token: Token) -> None:
        """A token of the answer has come."""
        self.first = self.first or time.monotonic_ns()
        self.tokens.append(token.id)

    def metrics(self, counts: Counts) -> dict[str, int]:
        """Fields of a last line. The prompt's duration goes from its tokens to the first of the answer, and so has the
        wait for a place in the batch."""
        now = time.monotonic_ns()
        first = self.first or now
        return {
            "total_duration": now - self.begun,
            "load_duration": self.loaded - self.begun,
            "prompt_eval_count": counts.prompt,
            "prompt_eval_duration": first - self.read,
            "eval_count": counts.completion,
            "eval_duration": max(1, now - first),  # clients divide by it
        }


class LinesForm(Form):
    """Form of both endpoints of text. ``model``: as the request calls it. ``thinking``: whether reasoning is shown.
    ``raw``: the answer is nothing but text, of which no parts were read."""

    media_type: ClassVar[str] = NDJSON

    def __init__(self, model: str, watch: Watch, *, thinking: bool, logprobs: bool, raw: bool = False) -> None:
        self.model = model
        self._raw = raw
        self._watch = watch
        self._thinking = thinking
        self._logprobs = logprobs
        self._reason: str | None = None

    @abstractmethod
    def body(self, parts: Sequence[Part], **fields: Any) -> TextLine:
        """A line that says ``parts``, with these further ``fields``."""

    def last(self, parts: Sequence[Part], reason: str | None, counts: Counts, **fields: Any) -> TextLine:
        """A line that is the end, or a whole answer."""
        return self.body(parts, done=True, done_reason=reason or "stop", **self._watch.metrics(counts), **fields)

    def whole(self, answers: Sequence[Collected], counts: Counts) -> TextLine:
        (answer,) = answers
        parts = [Text(answer.text)] if self._raw else answer.parts
        return self.last(parts, answer.finish, counts, logprobs=self._told(answer.logprobs))

    def opening(self, counts: Counts) -> bytes:
        return b""

    def events(self, piece: Piece) -> bytes:
        self._reason = piece.finish or self._reason
        parts = [Text(piece.text)] if self._raw else piece.parts
        shown = [each for each in parts if self._is_shown(each)]
        told = self._told(piece.logprobs)
        if not shown and (told or (parts and piece.finish is None)):
            shown = [Text("")]  # reasoning that is not shown is a sign of life
        return b"".join(line(self.body([part], logprobs=UNSET if at else told)) for at, part in enumerate(shown))

    def closing(self, counts: Counts) -> bytes:
        return line(self.last([], self._reason, counts))

    def failed(self, error: ApiError) -> bytes:
        return line(OllamaErrorBody(error.message))

    def ping(self) -> bytes:
        """A line without text: lines have no comments."""
        return line(self.body([]))

    def _is_shown(self, part: Part) -> bool:
        if isinstance(part, Text):
            return bool(part.text)
        return self._thinking or not isinstance(part, Reasoning)

    def _told(self, entries: Sequence[Logprob]) -> list[TokenLogprob] | UnsetType:
        if not self._logprobs or not entries:
            return UNSET
        return [_logprob(each.text, each.logprob, [_logprob(*other) for other in each.top]) for each in entries]

    def thought(self, parts: Sequence[Part]) -> str | UnsetType:
        return (self._thinking and "".join(each.text for each in parts if isinstance(each, Reasoning))) or UNSET


class ChatForm(LinesForm):
    def body(self, parts: Sequence[Part], **fields: Any) -> ChatLine:
        calls = [_call(each) for each in parts if isinstance(each, Call)]
        message = Message(text_of(parts), thinking=self.thought(parts), tool_calls=calls or UNSET)
        return ChatLine(model=self.model, message=message, **fields)


class GenerateForm(LinesForm):
    """``prompt``: its tokens, which the last line repeats as ``context``; None where that is not wanted."""

    def __init__(
        self,
        model: str,
        watch: Watch,
        *,
        thinking: bool,
        logprobs: bool,
        raw: bool,
        prompt: tuple[int, ...] | None,
    ) -> None:
        super().__init__(model, watch, thinking=thinking, logprobs=logprobs, raw=raw)
        self._prompt = prompt

    def body(self, parts: Sequence[Part], **fields: Any) -> GenerateLine:
        return GenerateLine(model=self.model, response=text_of(parts), thinking=self.thought(parts), **fields)

    def last(self, parts: Sequence[Part], reason: str | None, counts: Counts, **fields: Any) -> TextLine:
        context = UNSET if self._prompt is None else (*self._prompt, *self._watch.tokens)
        return super().last(parts, reason, counts, context=context, **fields)


def text_of(parts: Sequence[Part]) -> str:
    return "".join(each.text for each in parts if isinstance(each, Text))


def _call(call: Call) -> ToolCall:
    """The arguments as an object. They are JSON already, and must not break the line."""
    arguments = msgspec.Raw((call.arguments or "{}").replace("\n", " ").replace("\r", " "))
    return ToolCall(CalledFunction(call.name, arguments, call.index), call.id or UNSET)


def _logprob(text: str, logprob: float, top: list[TokenLogprob] | UnsetType = UNSET) -> TokenLogprob:
    return TokenLogprob(text, logprob, UNSET if "\ufffd" in text else list(text.encode()), top)
