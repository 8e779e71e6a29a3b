"""Objects of the Responses API as this server writes them: a response, its items, and the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ferrule.serve.answer.form import Counts


class TopLogprob(msgspec.Struct):
    """``bytes``: none for a part of a character, whose bytes are not known here."""

    token: str
    logprob: float
    bytes: list[int]


class Logprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class OutputText(msgspec.Struct):
    text: str
    logprobs: list[Logprob]
    annotations: tuple[()] = ()
    type: str = "output_text"


class PlainText(msgspec.Struct):
    """``type``: ``reasoning_text`` or ``summary_text``."""

    text: str
    type: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: str
    summary: list[PlainText]
    content: list[PlainText] | UnsetType = UNSET


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    id: str
    status: str
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputDetails
    input_tokens_details: InputDetails = InputDetails()


def response_usage(counts: Counts) -> ResponseUsage:
    return ResponseUsage(
        counts.prompt,
        counts.completion,
        counts.prompt + counts.completion,
        OutputDetails(counts.reasoning),
        InputDetails(counts.cached),
    )


class Failed(msgspec.Struct):
    code: str
    message: str


class Incomplete(msgspec.Struct):
    reason: str


class ResponseBody(msgspec.Struct):
    """A response. What its request said is told again."""

    id: str
    created_at: int
    model: str
    status: str
    output: Sequence[OutputItem]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: Mapping[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: Mapping[str, Any]
    safety_identifier: str | None
    store: bool
    temperature: float
    text: Mapping[str, Any]
    tool_choice: Any
    tools: Sequence[Any]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    completed_at: int | None = None
    error: Failed | None = None
    incomplete_details: Incomplete | None = None
    usage: ResponseUsage | None = None
    background: bool = False
    service_tier: str = "default"
    object: str = "response"


class Event(msgspec.Struct):
    """An event of a stream, with the fields that its type has."""

    type: str
    sequence_number: int = 0
    response: ResponseBody | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    part: OutputText | PlainText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: Sequence[Logprob] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET


class Deleted(msgspec.Struct):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct):
    data: Sequence[Mapping[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: str = "response.input_tokens"
