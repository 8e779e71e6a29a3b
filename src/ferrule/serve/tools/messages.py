"""The messages of a conversation, checked, and as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ferrule.engine import ChatMessage
from ferrule.errors import RequestError
from ferrule.serve.images.layout import Content, Layout, images_in, parts_of, text_in, together
from ferrule.serve.images.shown import ShownImage, shown_image
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
SHOWING: Final = ("user", "tool")
"""Roles, as templates call them, whose messages may have images."""


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


def message_content(value: Any) -> Content:
    """A message's content: a string, or a list of parts, of which those of text become paragraphs. A tuple is what
    another API has read already."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list):
        return clean_text(value, "content")
    return together([_part(part, at) for at, part in enumerate(value)])


def message_text(value: Any) -> str:
    """Content that has no place for images."""
    content = message_content(value)
    if not isinstance(content, str):
        raise ValueError("it has parts that are images; only text is taken here")
    return content


def _part(part: Any, at: int) -> str | ShownImage:
    """Part ``at`` of a message's content."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError('each part must be an object such as {"type": "text", "text": "..."}')
    match part["type"]:
        case "refusal":
            return clean_text(part.get("refusal"), "a refusal")
        case "text":
            return clean_text(part.get("text"), "the text of a part")
        case "image_url":
            given = part.get("image_url")
            try:
                return shown_image(given.get("url") if isinstance(given, dict) else given, f"content.{at}")
            except ValueError as error:
                raise ValueError(f"part {at}: {error}") from None
        case kind:
            raise ValueError(f"parts of type {kind!r} are not supported: this server takes text and images")


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


Told = Annotated[Content, BeforeValidator(message_content, json_schema_input_type=str | list[dict[str, Any]] | None)]
PlainText = Annotated[str, BeforeValidator(message_text, json_schema_input_type=str | list[dict[str, Any]] | None)]
_Named = Annotated[str, WithJsonSchema({"type": "string", "enum": [*ROLES]})]
Role = Annotated[str, BeforeValidator(message_role, json_schema_input_type=_Named)]
Clean = Annotated[str | None, BeforeValidator(_text, json_schema_input_type=str | None)]
Arguments = Annotated[dict[str, Any], BeforeValidator(call_arguments, json_schema_input_type=str | dict[str, Any])]


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
    content: Told = ""
    name: Clean = None
    reasoning_content: Clean = None
    reasoning: Clean = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: Clean = None
    function_call: CalledFunction | None = None


def template_messages(messages: Sequence[Message], layout: Layout | None) -> list[ChatMessage]:
    """``messages`` as chat templates take them. A result of a tool gets the name of the call that it answers, where it
    has none, as some templates want it. ``layout``: of images; without one there are none."""
    made, names = [], dict[str, str]()
    for message in messages:
        content = text_in(message.content) if layout is None else layout.content(message.content)
        plain = ChatMessage(role=message.role, content=content)
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


def has_images(messages: Sequence[Message]) -> bool:
    return any(images_in(message.content) for message in messages)


def images_of(messages: Sequence[Message]) -> tuple[ShownImage, ...]:
    """All that ``messages`` show, in their order. Raises `RequestError` for one where no model looks for it."""
    made = list[ShownImage]()
    for at, message in enumerate(messages):
        for each in images_in(message.content):
            where = f"messages.{at}.{each.where}" if each.where.startswith("content") else each.where
            if message.role not in SHOWING:
                raise RequestError(
                    f"{where}: only messages of the user and results of tools may have images", param=where
                )
            made.append(replace(each, where=where))
    return tuple(made)


def results_apart(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with the images of tools' results as what the user says next, for templates that look for them only
    there."""
    made, waiting = list[Message](), list[ShownImage]()
    for message in messages:
        if message.role == "tool":
            waiting += images_in(message.content)
            made.append(message.model_copy(update={"content": text_in(message.content)}))
            continue
        if waiting and message.role == "user":
            message = message.model_copy(update={"content": (*waiting, *parts_of(message.content))})
        elif waiting:
            made.append(Message(role="user", content=tuple(waiting)))
        waiting = []
        made.append(message)
    return [*made, Message(role="user", content=tuple(waiting))] if waiting else made
