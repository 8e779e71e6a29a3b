"""Arguments of tool calls as JSON. What models write is checked: clients get nothing but valid JSON objects."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ferrule.serve.tools.parts import Call


class MalformedError(ValueError):
    """What a model wrote is no tool call."""


class OpenValueError(MalformedError):
    """A value has begun that does not end before the marker: either that is part of it, or its end is forgotten."""


def read_json(text: str) -> Any:
    """The JSON value ``text``. Raises `MalformedError`; also for NaN and the like, which JSON has not."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from None


_JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_PYTHON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|\'[^\'\\]*(?:\\.[^\'\\]*)*\'|["\'{}\[\]()]', re.DOTALL)


def json_end(text: str, at: int) -> int | None:
    """Where the JSON object or list that begins at ``at`` ends; None while it is open. Only brackets and strings are
    looked at."""
    return _end(_JSON_MARK, text, at)


def python_end(text: str, at: int) -> int | None:
    """The same for a list as Python writes it."""
    return _end(_PYTHON_MARK, text, at)


def _end(marks: re.Pattern[str], text: str, at: int) -> int | None:
    depth = 0
    for mark in marks.finditer(text, at):
        if mark[0] in ("{", "[", "("):
            depth += 1
        elif mark[0] in ("}", "]", ")"):
            depth -= 1
            if depth <= 0:
                return mark.end()
        elif len(mark[0]) == 1:
            return None  # a string that is open
    return None


def write_json(value: Any) -> str:
    """``value`` as JSON. Raises `MalformedError` for what JSON cannot say."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedError(str(error)) from None
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)  # half a surrogate pair, which JSON can spell but UTF-8 cannot
    return text


def call(name: Any, arguments: Any, identity: str | None = None) -> Call:
    """A call of ``name``. Raises `MalformedError` unless it has a name and ``arguments`` are an object."""
    if isinstance(arguments, str):  # some models write the object as text in a string
        arguments = read_json(arguments)
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, Mapping):
        raise MalformedError("a call has a name, and an object of arguments")
    return Call(name.strip(), write_json(arguments), identity)


def call_of(value: Any) -> Call:
    """The call that a JSON object says by ``name`` and ``arguments`` (or ``parameters``)."""
    if not isinstance(value, Mapping):
        raise MalformedError("a call is an object")
    if isinstance(value.get("function"), Mapping):
        value = value["function"]
    given = value.get("arguments", value.get("parameters"))
    return call(value.get("name"), given)


def typed(text: str, schema: Any) -> Any:
    """``text``, which a model wrote without quotes, as a value of its ``schema``: text if that is all it may be, else
    what it says as JSON (or, of some models, as Python), else text."""
    kinds = kinds_of(schema)
    if kinds == {"string"} or (kinds == {"string", "null"} and text.strip() != "null"):
        return text
    for read in (read_json, _literal):
        try:
            value = read(text.strip())
        except MalformedError:
            continue
        if not kinds or _kind(value) & kinds:
            return value
    return text


def _literal(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
        write_json(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        raise MalformedError("no literal of Python") from None
    return value


def kinds_of(schema: Any) -> set[str]:
    """Types that ``schema`` allows, by JSON schema's names; empty where it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    told = schema.get("type")
    if isinstance(told, str):
        return {told}
    if isinstance(told, Sequence):
        return {each for each in told if isinstance(each, str)}
    if isinstance(schema.get("enum"), Sequence):
        return set().union(*(_kind(each) for each in schema["enum"]))
    either = [kinds_of(each) for name in ("anyOf", "oneOf") for each in schema.get(name) or ()]
    return set().union(*either) if all(either) else set()


def _kind(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case Mapping():
            return {"object"}
    return {"array"}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
