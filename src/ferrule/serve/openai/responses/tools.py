"""Tools that a request for a response offers, as those of a chat, and back: which of them a call is for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json

from ferrule.engine import Constraint
from ferrule.errors import RequestError
from ferrule.serve.openai.schemas import unsupported
from ferrule.serve.structured.chats import TextTool
from ferrule.serve.structured.grammars import encodable

Tool = Mapping[str, Any]

LEFT_OUT: Final = ("web_search", "image_generation")
"""Beginnings of types of tools that run at OpenAI and that agents offer beside their own, whether they are there or
not: Codex offers a search unless it is told not to. Left to the model (``auto``), not to call one is an answer, too."""
JOINED: Final = "__"
INPUT: Final = "input"
FREE_TEXT: Final = TextTool(INPUT).schema
"""Parameters by which a model, which can write only JSON, is asked for a custom tool's free text."""


@dataclass(frozen=True)
class Origin:
    """Tool that a call is for, by its name in the request. ``custom``: it takes free text."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True)
class Offered:
    """``shown``: tools as a chat has them. ``texts``: those that are custom, ``origins``: all, by the names there.
    ``told``: the request's own, without those that are left out. ``choice``: ``tool_choice`` of the chat."""

    shown: Sequence[dict[str, Any]] = ()
    texts: Mapping[str, TextTool] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    told: Sequence[Tool] = ()
    choice: str | dict[str, Any] | None = None

    def origin(self, name: str) -> Origin:
        return self.origins.get(name) or Origin(name)


def joined(name: str, namespace: str | None) -> str:
    """The name that a model is told: it knows of no namespaces."""
    if namespace is None:
        return name
    return namespace + ("" if namespace.endswith(JOINED) else JOINED) + name


def offered(tools: Sequence[Tool] | None, choice: str | Mapping[str, Any] | None) -> Offered:
    """What ``tools`` and ``tool_choice`` say. Raises `RequestError` for tools that this server would have to run."""
    told = [tool for at, tool in enumerate(tools or ()) if not _is_left_out(tool, at)]
    if tools and not told and choice != "none":
        kind = tools[0]["type"]
        raise unsupported("tools", f"{kind} runs at OpenAI and is not there; offer a function that your program runs")
    shown: list[dict[str, Any]] = []
    origins: dict[str, Origin] = {}
    texts: dict[str, TextTool] = {}
    for each, origin in _flat(told):
        name = joined(origin.name, origin.namespace)
        if name in origins:
            raise RequestError(f"tools: there are two of the name {name!r}", param="tools", code="invalid_value")
        origins[name] = origin
        if origin.custom:
            texts[name] = TextTool(INPUT, *_grammar(each))
        shown.append({"type": "function", "function": _function(each, name, custom=origin.custom)})
    allowed, wanted = _choice(choice, origins)
    if allowed is not None:
        shown = [each for each in shown if each["function"]["name"] in allowed]
    if wanted == "required" and not shown:
        raise _wrong("it is required, but no tool may be called")
    return Offered(shown, texts, origins, told, wanted if shown else None)


def _is_left_out(tool: Tool, at: int) -> bool:
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise RequestError(f"tools.{at}.type: this field is required", param=f"tools.{at}.type", code="invalid_value")
    return kind.startswith(LEFT_OUT)


def _flat(tools: Sequence[Tool], namespace: str | None = None) -> Iterator[tuple[Tool, Origin]]:
    """Functions and custom tools, those of namespaces among them."""
    for tool in tools:
        kind = tool.get("type")
        given = tool["function"] if kind == "function" and isinstance(tool.get("function"), dict) else tool
        name = given.get("name")
        if kind not in ("function", "custom", "namespace"):
            raise unsupported(
                "tools", f"a tool of type {kind!r} is not there; offer a function, which your program runs itself"
            )
        if not isinstance(name, str) or not name:
            raise RequestError(f"tools: a {kind} has no name", param="tools", code="invalid_value")
        if kind == "namespace":
            yield from _flat(_inner(given, name, namespace), name)
        else:
            yield given, Origin(name, namespace, kind == "custom")


def _inner(tool: Tool, name: str, namespace: str | None) -> Sequence[Tool]:
    inner = tool.get("tools")
    if namespace is not None or not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
        why = "must have tools, which are functions or custom tools"
        raise RequestError(f"tools: namespace {name!r} {why}", param="tools", code="invalid_value")
    return inner


def _function(tool: Tool, name: str, *, custom: bool) -> dict[str, Any]:
    if custom:
        return {"name": name, "description": _custom_description(tool), "parameters": FREE_TEXT}
    fields = ("description", "parameters", "strict")
    return {"name": name} | {each: tool[each] for each in fields if tool.get(each) is not None}


def _grammar(tool: Tool) -> tuple[Constraint | None, str]:
    """Grammar of a custom tool's text, and the field that has it. Raises `RequestError` for one that is none."""
    form, place = tool.get("format"), f"tools[{tool['name']}].format"
    if form is None or (isinstance(form, Mapping) and form.get("type") == "text"):
        return None, place
    if not isinstance(form, Mapping) or form.get("type") != "grammar":
        raise RequestError(f"{place}: its type must be text or grammar", param=place, code="invalid_value")
    syntax, source = form.get("syntax"), form.get("definition")
    if syntax not in ("lark", "regex"):
        raise RequestError(f"{place}.syntax: must be lark or regex", param=f"{place}.syntax", code="invalid_value")
    place += ".definition"
    if not isinstance(source, str) or not source:
        raise RequestError(f"{place}: must be a text that is not empty", param=place, code="invalid_value")
    return Constraint(syntax, encodable(source, place)), place


def _custom_description(tool: Tool) -> str:
    """With the format of its text, which a model is to know before it is held to it."""
    text = str(tool.get("description") or "")
    form = tool.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        text += f"\n\n`input` must follow this {form.get('syntax')} grammar:\n{form.get('definition')}"
    return text.strip()


def _choice(
    choice: str | Mapping[str, Any] | None, origins: Mapping[str, Origin]
) -> tuple[set[str] | None, str | dict[str, Any] | None]:
    """Names of the tools that may be called (None: all), and ``tool_choice`` as a chat has it."""
    if choice is None or choice in ("auto", "none", "required"):
        return None, choice if isinstance(choice, str) else None
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "allowed_tools":
        assert isinstance(choice, Mapping)
        listed = choice.get("tools")
        named = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
        names = {_named(each, origins) for each in named if not str(each.get("type")).startswith(LEFT_OUT)}
        mode = choice.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise _wrong("mode must be auto or required")
        return names, str(mode)
    if kind in ("function", "custom"):
        assert isinstance(choice, Mapping)
        return None, {"type": "function", "function": {"name": _named(choice, origins)}}
    if isinstance(kind, str):
        raise unsupported("tool_choice", f"a tool of type {kind!r} is not there")
    raise _wrong("must be none, auto, required, a function, a custom tool or allowed_tools")


def _named(choice: Mapping[str, Any], origins: Mapping[str, Origin]) -> str:
    namespace = choice.get("namespace")
    name = joined(str(choice.get("name")), namespace if isinstance(namespace, str) else None)
    if name not in origins:
        raise _wrong(f"{name!r} is not among the tools that are offered")
    return name


def _wrong(why: str) -> RequestError:
    return RequestError(f"tool_choice: {why}", param="tool_choice", code="invalid_value")


def free_text(arguments: str) -> str:
    """The text of a call of a custom tool, whose ``arguments`` the model wrote as `FREE_TEXT` says, or else."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return begun_text(arguments)
    if isinstance(given, dict) and isinstance(given.get("input"), str) and len(given) == 1:
        return str(given["input"])
    return arguments


def begun_text(arguments: str) -> str:
    """The same of ``arguments`` that are still being written, as far as that can be told."""
    try:
        begun = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:  # nothing is written yet, or half a character
        return ""
    return str(begun.get("input", "")) if isinstance(begun, dict) else ""


def call_status(arguments: str) -> str:
    """Whether ``arguments`` are all of an object: one whose answer was cut within them is no call yet."""
    try:
        json.loads(arguments)
    except ValueError:
        return "incomplete"
    return "completed"
