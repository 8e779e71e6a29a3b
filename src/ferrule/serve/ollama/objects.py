"""Ollama's objects as this server writes them: answers of text, models, and progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


def moment(seconds: float | None = None) -> str:
    """A time (in seconds since 1970; None: now) as RFC 3339 has it."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat().replace("+00:00", "Z")


class TokenLogprob(msgspec.Struct):
    """``bytes``: left out for a part of a character, whose bytes are not known here."""

    token: str
    logprob: float
    bytes: list[int] | UnsetType = UNSET
    top_logprobs: list[TokenLogprob] | UnsetType = UNSET


class CalledFunction(msgspec.Struct):
    name: str
    arguments: msgspec.Raw
    index: int


class ToolCall(msgspec.Struct):
    function: CalledFunction
    id: str | UnsetType = UNSET


class Message(msgspec.Struct):
    content: str
    role: str = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Metrics(msgspec.Struct, kw_only=True):
    """Counts of tokens, and durations in nanoseconds."""

    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class TextLine(Metrics, kw_only=True):
    """A whole answer, or a line of a stream, whose last one is ``done`` and has the metrics."""

    model: str
    created_at: str = msgspec.field(default_factory=moment)
    done: bool = False
    done_reason: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ChatLine(TextLine, kw_only=True):
    message: Message


class GenerateLine(TextLine, kw_only=True):
    """``context``: the tokens of prompt and answer, for the next request."""

    response: str
    thinking: str | UnsetType = UNSET
    context: Sequence[int] | UnsetType = UNSET


class Details(msgspec.Struct):
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    parent_model: str = ""


class Listed(msgspec.Struct, kw_only=True):
    """A model. ``modified_at`` of those that can be had, the others of those that are in memory."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    modified_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class ModelList(msgspec.Struct):
    models: list[Listed]


class Shown(msgspec.Struct):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct):
    version: str


class Embedded(Metrics, kw_only=True):
    model: str
    embeddings: Sequence[Sequence[float]]


class Embedding(msgspec.Struct):
    embedding: Sequence[float]


class Progress(msgspec.Struct, omit_defaults=True):
    """A line of a download. ``completed`` of ``total`` bytes of the file with this ``digest``."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None
