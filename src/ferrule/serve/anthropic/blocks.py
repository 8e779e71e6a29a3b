"""Content blocks of a conversation as OpenAI's messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ferrule.errors import RequestError
from ferrule.serve.anthropic.schemas import Block, CountRequest, Turn, blocks
from ferrule.serve.images.layout import Content, parts_of, together
from ferrule.serve.images.shown import ShownImage, shown_image
from ferrule.serve.openai.schemas import unsupported

BILLING: Final = "x-anthropic-billing-header:"
"""Beginning of a line of Claude Code's system prompt that is meant for Anthropic's accounts. It differs in every
request, so that nothing computed for the last one could be used again; `CLAUDE_CODE_ATTRIBUTION_HEADER=0` leaves it out
(https://www.agentpatterns.ai/context-engineering/kv-cache-invalidation-local-inference/)."""

SKIPPED: Final = frozenset({"redacted_thinking", "server_tool_use"})
"""Blocks in the history that say nothing to a model: what is encrypted, and calls that Anthropic's servers made. Their
results end in `RESULT`."""
RESULT: Final = "_tool_result"


def shows_images(body: CountRequest) -> bool:
    """Whether any message has an image, also within the result of a tool."""
    every = [block for turn in body.messages for block in turn.content]
    inner = [each for block in every if isinstance(block.get("content"), list) for each in block["content"]]
    return any(isinstance(each, dict) and each.get("type") == "image" for each in (*every, *inner))


def system_text(given: Sequence[Block]) -> str:
    """The system prompt, its parts as paragraphs."""
    texts = [_text(block, f"system.{at}") for at, block in enumerate(given)]
    shown = [text.partition("\n")[2] if text.startswith(BILLING) else text for text in texts]
    return "\n".join(filter(None, shown))


def messages_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """``turns`` as OpenAI's messages: a result of a tool is one of its own, and turns of one role in a row are one."""
    made: list[dict[str, Any]] = []
    for at, turn in enumerate(turns):
        for message in _of_turn(turn, f"messages.{at}"):
            if made and made[-1]["role"] == message["role"] != "tool":
                _join(made[-1], message)
            else:
                made.append(message)
    return made


def _join(last: dict[str, Any], more: dict[str, Any]) -> None:
    for field in ("reasoning_content", "content"):
        if more.get(field):
            last[field] = together([*parts_of(last.get(field, "")), *parts_of(more[field])])
    if "tool_calls" in more:
        last["tool_calls"] = [*last.get("tool_calls", ()), *more["tool_calls"]]


def _of_turn(turn: Turn, where: str) -> Iterator[dict[str, Any]]:
    parts, thoughts, calls = list[str | ShownImage](), list[str](), list[dict[str, Any]]()
    for at, block in enumerate(turn.content):
        place, kind = f"{where}.content.{at}", block["type"]
        if kind == "tool_result" and turn.role == "user":
            if parts:
                yield {"role": "user", "content": together(parts)}
                parts = []
            yield {
                "role": "tool",
                "tool_call_id": _string(block, "tool_use_id", place),
                "content": _result(block, place),
            }
        elif kind == "tool_use" and turn.role == "assistant":
            calls.append(_call(block, place))
        elif kind == "thinking" and turn.role == "assistant":
            thoughts.append(_string(block, "thinking", place))
        elif kind not in SKIPPED and not kind.endswith(RESULT):
            parts.append(_part(block, place))
    if parts or thoughts or calls or not turn.content:
        message: dict[str, Any] = {"role": turn.role, "content": together(parts)}
        if any(thoughts):
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        yield message


def _call(block: Block, place: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise _wrong(f"{place}.input", "must be a JSON object")
    function = {"name": _string(block, "name", place), "arguments": given}
    return {"id": _string(block, "id", place), "type": "function", "function": function}


def _result(block: Block, place: str) -> Content:
    """A tool's result. Templates know no failed ones: those say so in words."""
    parts = [_part(each, at) for at, each in _content(block, f"{place}.content")]
    if block.get("is_error") is True:
        first = parts.pop(0) if parts and isinstance(parts[0], str) else ""
        parts.insert(0, f"Error: {first}")
    return together(parts)


def _content(block: Block, place: str) -> Iterator[tuple[str, Block]]:
    """The content of ``block``, which is at ``place``, each with its own."""
    try:
        parts = blocks(block.get("content"))
    except ValueError as error:
        raise _wrong(place, str(error)) from None
    for at, part in enumerate(parts):
        yield f"{place}.{at}", part


def _texts(block: Block, place: str) -> list[str]:
    """Texts of the content of ``block``, which is at ``place``."""
    return [_text(each, at) for at, each in _content(block, place)]


def _part(block: Block, place: str) -> str | ShownImage:
    return _image(block, place) if block["type"] == "image" else _text(block, place)


def _image(block: Block, place: str) -> ShownImage:
    given = block.get("source")
    source: Block = given if isinstance(given, dict) else {}
    match source.get("type"):
        case "base64":
            data, kind = _string(source, "data", f"{place}.source"), _string(source, "media_type", f"{place}.source")
            return ShownImage(f"data:{kind};base64,{data}", place)
        case "url":
            try:
                return shown_image(source.get("url"), place)
            except ValueError as error:
                raise _wrong(f"{place}.source.url", str(error)) from None
        case kind:
            raise unsupported(place, f"images of type {kind!r} are not kept here; send them in base64")


def _text(block: Block, place: str) -> str:
    match block["type"]:
        case "text":
            return _string(block, "text", place)
        case "tool_reference":
            return _string(block, "tool_name", place)
        case "search_result":
            title, source = _string(block, "title", place), _string(block, "source", place)
            return "\n".join((f"{title} ({source})", *_texts(block, f"{place}.content")))
        case "document":
            return _document(block, place)
        case kind:
            raise unsupported(place, f"blocks of type {kind!r} are not taken in this place")


def _document(block: Block, place: str) -> str:
    given = block.get("source")
    source: Block = given if isinstance(given, dict) else {}
    kind = source.get("type")
    if kind == "text":
        text = _string(source, "data", f"{place}.source")
    elif kind == "content":
        text = "\n".join(_texts(source, f"{place}.source.content"))
    else:
        raise unsupported(place, f"documents of type {kind!r} cannot be read here; send their text")
    heading = [each for field in ("title", "context") if isinstance(each := block.get(field), str) and each]
    return "\n".join((*heading, text))


def _string(block: Block, field: str, place: str) -> str:
    value = block.get(field)
    if not isinstance(value, str):
        raise _wrong(f"{place}.{field}", "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(
            f"{place}.{field}", f"is not valid Unicode: half a surrogate pair at character {error.start}"
        ) from None
    return value


def _wrong(field: str, why: str) -> RequestError:
    return RequestError(f"{field}: {why}", param=field, code="invalid_value")
