"""Content blocks of a conversation as OpenAI's messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ferrule.errors import RequestError
from ferrule.serve.anthropic.schemas import Block, Turn, blocks
from ferrule.serve.openai.schemas import unsupported

BILLING: Final = "x-anthropic-billing-header:"
"""Beginning of a line of Claude Code's system prompt that is meant for Anthropic's accounts. It differs in every
request, so that nothing computed for the last one could be used again; `CLAUDE_CODE_ATTRIBUTION_HEADER=0` leaves it out
(https://www.agentpatterns.ai/context-engineering/kv-cache-invalidation-local-inference/)."""

SKIPPED: Final = frozenset({"redacted_thinking", "server_tool_use"})
"""Blocks in the history that say nothing to a model: what is encrypted, and calls that Anthropic's servers made. Their
results end in `RESULT`."""
RESULT: Final = "_tool_result"


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
            last[field] = "\n".join(filter(None, (last.get(field), more[field])))
    if "tool_calls" in more:
        last["tool_calls"] = [*last.get("tool_calls", ()), *more["tool_calls"]]


def _of_turn(turn: Turn, where: str) -> Iterator[dict[str, Any]]:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for at, block in enumerate(turn.content):
        place, kind = f"{where}.content.{at}", block["type"]
        if kind == "tool_result" and turn.role == "user":
            if texts:
                yield {"role": "user", "content": "\n".join(texts)}
                texts = []
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
            texts.append(_text(block, place))
    if texts or thoughts or calls or not turn.content:
        message: dict[str, Any] = {"role": turn.role, "content": "\n".join(texts)}
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


def _result(block: Block, place: str) -> str:
    """Text of a tool's result. Templates know no failed ones: those say so in words."""
    text = "\n".join(_texts(block, f"{place}.content"))
    return f"Error: {text}" if block.get("is_error") is True else text


def _texts(block: Block, place: str) -> list[str]:
    """Texts of the content of ``block``, which is at ``place``."""
    try:
        parts = blocks(block.get("content"))
    except ValueError as error:
        raise _wrong(place, str(error)) from None
    return [_text(part, f"{place}.{at}") for at, part in enumerate(parts)]


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
        case "image":  # a model that sees would take it as OpenAI's `image_url`
            raise unsupported(place, "this model takes no images; leave them out, or say what they show")
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
