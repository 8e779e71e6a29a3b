"""Items of a conversation: checked, and as messages of a chat. Pure, but for the ids that items without one get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from ferrule.errors import RequestError
from ferrule.serve.images.layout import Content, parts_of, together
from ferrule.serve.images.shown import ShownImage, shown_image
from ferrule.serve.openai.responses.tools import joined
from ferrule.serve.tools.messages import call_arguments, clean_text

Item = Mapping[str, Any]

PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
"""Types of items that are understood, and how their ids begin."""
REFERENCE: Final = "item_reference"
TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def read_items(given: Sequence[Item], known: Callable[[str], Item | None]) -> list[Item]:
    """``given`` checked, with what is implied written out. ``known``: a kept item by its id.

    Raises `RequestError` for an item that cannot be understood, with its place.
    """
    made = []
    for at, item in enumerate(given):
        try:
            made.append(_read(item, known))
        except ValueError as error:
            raise RequestError(f"input.{at}: {error}", param=f"input.{at}", code="invalid_value") from None
    return made


def _read(item: Item, known: Callable[[str], Item | None]) -> Item:
    kind = _optional(item, "type")
    if kind is None:
        kind = "message" if "role" in item else REFERENCE
    if kind == REFERENCE:
        found = known(_word(item, "id"))
        if found is None:
            raise ValueError(f"there is no item {item['id']!r} here; items of responses are kept for a time (store)")
        return found
    if kind not in PREFIXES:
        raise ValueError(f"items of type {kind!r} are not supported; use one of {', '.join((*PREFIXES, REFERENCE))}")
    read = {
        "id": _optional(item, "id") or new_id(PREFIXES[kind]),
        "type": kind,
        "status": "completed",
        **_OF[kind](item),
    }
    return {name: value for name, value in read.items() if value is not None}


def _message(item: Item) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise ValueError("role must be system, developer, user or assistant")
    if role == "assistant":
        text = _text(item.get("content"), "content")
        return {"role": role, "content": [{"type": "output_text", "text": text, "annotations": []}]}
    return {"role": role, "content": _shown(item.get("content"), "content")}


def _reasoning(item: Item) -> dict[str, Any]:
    """The text itself, else its summary. What only OpenAI can decrypt is no text here."""
    content, summary = item.get("content"), item.get("summary")
    return {
        "summary": [{"type": "summary_text", "text": _text(summary, "summary")}] if summary else [],
        "content": [{"type": "reasoning_text", "text": _text(content, "content")}] if content else None,
    }


def _function_call(item: Item) -> dict[str, Any]:
    text = clean_text(item.get("arguments", "{}"), "arguments")
    call_arguments(text)
    names = {"name": _word(item, "name"), "namespace": _optional(item, "namespace")}
    return {"call_id": _word(item, "call_id"), "arguments": text, **names}


def _custom_call(item: Item) -> dict[str, Any]:
    names = {"name": _word(item, "name"), "namespace": _optional(item, "namespace")}
    return {"call_id": _word(item, "call_id"), "input": clean_text(item.get("input", ""), "input"), **names}


def _output(item: Item) -> dict[str, Any]:
    shown = _shown(item.get("output"), "output")
    return {"call_id": _word(item, "call_id"), "output": shown if any(map(_is_image, shown)) else shown[0]["text"]}


_OF: Final[Mapping[str, Callable[[Item], dict[str, Any]]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
}


def _word(item: Item, field: str) -> str:
    value = item.get(field)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{field} must be a string that is not empty")
    return clean_text(value, field)


def _optional(item: Item, field: str) -> str | None:
    return _word(item, field) if item.get(field) else None


def _text(value: Any, what: str) -> str:
    """A string, or a list of parts of text, which become paragraphs."""
    if not isinstance(value, list):
        return clean_text(value, what)
    return "\n".join(_text_of(part, what, "only text") for part in value)


def _text_of(part: Any, what: str, taken: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return clean_text(part.get("refusal"), "a refusal")
    if kind in TEXTS:
        return clean_text(part.get("text"), "the text of a part")
    raise ValueError(f"{what} has a part of type {kind!r}, which is not supported: {taken} can be here")


def _shown(value: Any, what: str) -> list[dict[str, Any]]:
    """A string, or a list of parts, as parts: one of text, or as they came where there are images."""
    if not isinstance(value, list) or not any(map(_is_image, value)):
        return [{"type": "input_text", "text": _text(value, what)}]
    return [
        _image(part, f"{what}.{at}")
        if _is_image(part)
        else {"type": "input_text", "text": _text_of(part, what, "text or images")}
        for at, part in enumerate(value)
    ]


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image"


def _image(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    if part.get("file_id"):
        raise ValueError(f"{where}.file_id is not supported: no files are kept here; send the image as image_url")
    try:
        shown = shown_image(part.get("image_url"), where)
    except ValueError as error:
        raise ValueError(f"{where}.image_url: {error}") from None
    return {"type": "input_image", "image_url": shown.url, "detail": "auto"}


def has_images(item: Item) -> bool:
    """Whether a message, or an output, shows some."""
    parts = item.get("content") if item["type"] == "message" else item.get("output")
    return isinstance(parts, list) and any(map(_is_image, parts))


def _content(parts: Any, where: str) -> Content:
    """Content of an item, which is at ``where``, as a message has it."""
    if isinstance(parts, str):
        return parts
    return together(
        ShownImage(part["image_url"], f"{where}.{at}") if _is_image(part) else part["text"]
        for at, part in enumerate(parts)
    )


def messages_of(
    items: Sequence[Item], instructions: str | None = None, places: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """``items`` as messages of a chat, after ``instructions``. ``places``: fields of the request's own items, by their
    ids.

    What the assistant thinks, says and calls in one turn is one message; so are messages of one role in a row, which
    many templates refuse, and which agents send: instructions, rules and surroundings each as their own.
    """
    made: list[dict[str, Any]] = []
    if instructions:
        made.append({"role": "system", "content": [instructions]})
    for item in items:
        where = (places or {}).get(item.get("id", "")) or f"the item {item.get('id')!r}"
        match item["type"]:
            case "message" if item["role"] == "assistant":
                _turn(made, free_of=("content", "tool_calls"))["content"] = item["content"][0]["text"]
            case "message":
                role = "user" if item["role"] == "user" else "system"
                if not made or made[-1]["role"] != role:
                    made.append({"role": role, "content": []})
                made[-1]["content"] += parts_of(_content(item["content"], f"{where}.content"))
            case "reasoning":
                texts = item.get("content") or item["summary"]
                if texts:
                    turn = _turn(made, free_of=("reasoning_content", "content", "tool_calls"))
                    turn["reasoning_content"] = "\n".join(part["text"] for part in texts)
            case "function_call" | "custom_tool_call":
                name = joined(item["name"], item.get("namespace"))
                arguments = item["arguments"] if "arguments" in item else {"input": item["input"]}
                call = {"id": item["call_id"], "function": {"name": name, "arguments": arguments}}
                _turn(made).setdefault("tool_calls", []).append(call)
            case _:
                made.append(
                    {
                        "role": "tool",
                        "tool_call_id": item["call_id"],
                        "content": _content(item["output"], f"{where}.output"),
                    }
                )
    for each in made:
        if isinstance(each.get("content"), list):
            each["content"] = together(each["content"], "\n\n")
    return made


def _turn(made: list[dict[str, Any]], free_of: Sequence[str] = ()) -> dict[str, Any]:
    """The assistant's turn at the end of ``made``, or a new one where that has one of ``free_of`` already."""
    if not made or made[-1]["role"] != "assistant" or any(field in made[-1] for field in free_of):
        made.append({"role": "assistant"})
    return made[-1]
