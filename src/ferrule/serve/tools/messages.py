"""The messages of a conversation, checked, and as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ferrule.engine import ChatMessage
from ferrule.serve.tools.arguments import MalformedError, read_json

ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Roles that are understood, and what chat templates call them."""


class Body(BaseModel):
    """No value is bent to fit: ``"1"`` is not a number and NaN is not one either."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def clean_text(value: Any, what: str) -> str:
    """``value`` if it is text that can be encoded; JSON can also spell halves of characters, which cannot."""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not valid Unicode: half a surrogate pair at character {error.start}") from error
    return value


def message_text(value: Any) -> str:
    """The text of a message's content: a string, or a list of text parts, which become paragraphs."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return clean_text(value, "content")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError('each part must be an object such as {"type": "text", "text": "..."}')
        if part["type"] == "refusal":
            texts.append(clean_text(part.get("refusal"), "a refusal"))
            continue
        if part["type"] != "text":
            raise ValueError(f"parts of type {part['type']!r} are not supported: this server takes text only")
        texts.append(clean_text(part.get("text"), "the text of a part"))
    return "\n".join(texts)


def message_role(value: Any) -> str:
    if not isinstance(value, str) or value not in ROLES:
        raise ValueError(f"must be one of {', '.join(ROLES)}")
    return ROLES[value]


def call_arguments(value: Any) -> dict[str, Any]:
    """The object that the JSON text ``value`` is, as templates take it; they would write a text as a string."""
    if isinstance(value, str):
        try:
            value = read_json(value or "{}")
        except MalformedError as error:
            raise ValueError(f"arguments are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("arguments must be a JSON object, as text")
    return value


def _text(value: Any) -> str | None:
    return None if value is None else clean_text(value, "it")


Content = Annotated[str, BeforeValidator(message_text, json_schema_input_type=str | list[dict[str, Any]] | None)]
_Named = Annotated[str, WithJsonSchema({"type": "string", "enum": [*ROLES]})]
Role = Annotated[str, BeforeValidator(message_role, json_schema_input_type=_Named)]
Clean = Annotated[str | None, BeforeValidator(_text, json_schema_input_type=str | None)]
Arguments = Annotated[dict[str, Any], BeforeValidator(call_arguments, json_schema_input_type=str)]


class CalledFunction(Body):
    name: str = Field(min_length=1)
    arguments: Arguments = {}


class MadeCall(Body):
    """A call of the assistant's, in the history."""

    id: Clean = None
    type: str = "function"
    function: CalledFunction


class Message(Body):
    role: Role
    content: Content = ""
    name: Clean = None
    reasoning_content: Clean = None
    reasoning: Clean = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: Clean = None
    function_call: CalledFunction | None = None


def template_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """``messages`` as chat templates take them. A result of a tool gets the name of the call that it answers, where it
    has none, as some templates want it."""
    made, names = [], dict[str, str]()
    for message in messages:
        plain = ChatMessage(role=message.role, content=message.content)
        reasoning = message.reasoning_content or message.reasoning
        if reasoning:
            plain["reasoning_content"] = reasoning
        calls = message.tool_calls or []
        if message.function_call is not None:
            calls = [MadeCall(function=message.function_call)]
        if calls:
            plain["tool_calls"] = [each.model_dump(exclude_none=True) for each in calls]
            names |= {each.id: each.function.name for each in calls if each.id is not None}
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
        name = message.name or names.get(message.tool_call_id or "")
        if name is not None:
            plain["name"] = name
        made.append(plain)
    return made
