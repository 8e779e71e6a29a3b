"""Anthropic's objects as this server writes them: messages, events of a stream, models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Usage(msgspec.Struct):
    """Tokens. Input is what was computed for this request, and ``cache_read_input_tokens`` what was for earlier ones:
    together they are the prompt."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Any


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageBody(msgspec.Struct):
    id: str
    model: str
    content: Sequence[Block]
    usage: Usage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class Delta(msgspec.Struct):
    """Of a block, by its ``type``: one other field is set."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET


class Stop(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None


class Event(msgspec.Struct):
    """Event of a stream; which fields it has, its ``type`` says."""

    type: str
    message: MessageBody | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: Block | UnsetType = UNSET
    delta: Delta | Stop | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET


class CountBody(msgspec.Struct):
    input_tokens: int


class ModelInfo(msgspec.Struct):
    """``created_at``: RFC 3339."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    type: str = "model"
    lifecycle: str = "active"


class ModelPage(msgspec.Struct):
    """All models in one page."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
