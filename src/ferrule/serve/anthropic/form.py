"""Answers as Anthropic's messages, whole and as a stream of named events
(https://platform.claude.com/docs/en/build-with-claude/streaming)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ferrule.engine import FinishReason
from ferrule.serve.answer.form import Collected, Counts, Form, sse
from ferrule.serve.answer.transcript import Piece
from ferrule.serve.anthropic.objects import (
    Block,
    Delta,
    Event,
    MessageBody,
    Stop,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)
from ferrule.serve.http.errors import ApiError
from ferrule.serve.tools.parts import Call, Part, Reasoning, Text, join

PATH = "/v1/messages"


@dataclass
class MessagesForm(Form):
    """``limit``: tokens that the client allowed; an answer of fewer that is cut has met the end of the context.
    ``shows_thinking``: whether reasoning is sent, or only that there was some."""

    id: str
    model: str
    limit: int
    shows_thinking: bool = True
    _block: Block | None = field(default=None, init=False)
    _index: int = field(default=-1, init=False)
    _thought: str = field(default="", init=False)
    _stop: Stop = field(default_factory=lambda: Stop("end_turn", None), init=False)

    def whole(self, answers: Sequence[Collected], counts: Counts) -> MessageBody:
        (answer,) = answers
        parts: list[Part] = []
        for part in answer.parts:
            join(parts, part)
        stop = self._stop_of(answer.finish, answer.stop, answer.tokens, called=answer.called)
        content = [self._whole_block(part) for part in parts]
        return MessageBody(self.id, self.model, content, _usage(counts), stop.stop_reason, stop.stop_sequence)

    def _whole_block(self, part: Part) -> Block:
        match part:
            case Text(text):
                return TextBlock(text)
            case Reasoning(text):
                return ThinkingBlock(text if self.shows_thinking else "", signature(text))
            case Call():
                return ToolUseBlock(part.id or "", part.name, json.loads(part.arguments))

    def opening(self, counts: Counts) -> bytes:
        return _event(Event("message_start", message=MessageBody(self.id, self.model, [], _usage(counts))))

    def events(self, piece: Piece) -> bytes:
        if piece.finish is not None:
            self._stop = self._stop_of(piece.finish, piece.stop, piece.tokens, called=piece.called)
        return b"".join(_event(event) for part in piece.parts for event in self._of_part(part))

    def closing(self, counts: Counts) -> bytes:
        ends = [*self._end(), Event("message_delta", delta=self._stop, usage=_usage(counts)), Event("message_stop")]
        return b"".join(map(_event, ends))

    def failed(self, error: ApiError) -> bytes:
        return sse(error.body(PATH), "error")

    def ping(self) -> bytes:
        return _event(Event("ping"))

    def _of_part(self, part: Part) -> Iterator[Event]:
        match part:
            case Text(text):
                if not isinstance(self._block, TextBlock):
                    yield from self._begin(TextBlock(""))
                yield self._delta(Delta("text_delta", text=text))
            case Reasoning(text):
                if not isinstance(self._block, ThinkingBlock):
                    yield from self._begin(ThinkingBlock("", ""))
                self._thought += text
                if self.shows_thinking:
                    yield self._delta(Delta("thinking_delta", thinking=text))
            case Call():  # also a piece of one, which has either
                if part.name:
                    yield from self._begin(ToolUseBlock(part.id or "", part.name, {}))
                if part.arguments:
                    yield self._delta(Delta("input_json_delta", partial_json=part.arguments))

    def _begin(self, block: Block) -> Iterator[Event]:
        yield from self._end()
        self._block, self._index = block, self._index + 1
        yield Event("content_block_start", index=self._index, content_block=block)

    def _end(self) -> Iterator[Event]:
        if isinstance(self._block, ThinkingBlock):
            yield self._delta(Delta("signature_delta", signature=signature(self._thought)))
            self._thought = ""
        if self._block is not None:
            yield Event("content_block_stop", index=self._index)
        self._block = None

    def _delta(self, delta: Delta) -> Event:
        return Event("content_block_delta", index=self._index, delta=delta)

    def _stop_of(self, finish: FinishReason | None, stop: str | None, tokens: int, *, called: bool) -> Stop:
        if finish == "length":
            return Stop("max_tokens" if tokens >= self.limit else "model_context_window_exceeded", None)
        if called:
            return Stop("tool_use", None)
        return Stop("end_turn" if stop is None else "stop_sequence", stop)


def signature(thought: str) -> str:
    """A digest of ``thought``: Anthropic's clients drop reasoning that has no signature. It is checked by nobody."""
    return hashlib.sha256(thought.encode()).hexdigest()


def _usage(counts: Counts) -> Usage:
    return Usage(counts.prompt - counts.cached, counts.completion, cache_read_input_tokens=counts.cached)


def _event(event: Event) -> bytes:
    return sse(event, event.type)
