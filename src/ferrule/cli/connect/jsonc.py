"""Edits of JSON with comments and trailing commas, which leave all else as it is, to the byte. Pure.

Grammar: RFC 8259, and what editors add to it (https://jsonc.org).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ferrule.cli.connect.edits import Edit
from ferrule.errors import ConfigError

_SPACE: Final = re.compile(r"(?:[ \t\r\n\ufeff]++|//[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD: Final = re.compile(r"[-+.\w]+")
_LINE_START: Final = re.compile(r"[ \t]*")
UNIT: Final = "  "


@dataclass
class _Node:
    """Value from ``start`` to ``end`` of a text. ``members``: of an object, by key: where the key starts, and its
    value. ``comma``: end of a trailing comma."""

    start: int
    value: Any
    end: int = 0
    members: dict[str, tuple[int, _Node]] | None = None
    comma: int | None = None
    last: int = field(default=0)


def read(text: str) -> Any:
    """The value that ``text`` is; an empty file is an empty object. Raises `ConfigError` with line and column."""
    return _parse(text).value if _SPACE.fullmatch(text) is None else {}


def edited(text: str, edits: Sequence[Edit]) -> str:
    """``text`` with ``edits`` made. Raises `ConfigError` for what cannot be parsed."""
    if _SPACE.fullmatch(text):
        text += "{}\n" if not text or text.endswith("\n") else "\n{}\n"
    for edit in edits:
        text = _set(text, edit.path, edit.value)
    return text


def _set(text: str, path: tuple[str, ...], value: Any) -> str:
    node = _parse(text)
    for at, step in enumerate(path):
        if node.members is None:
            raise _fault(text, node.start, f"{'.'.join(path[:at]) or 'the file'} is no object")
        if step not in node.members:
            for missing in reversed(path[at + 1 :]):
                value = {missing: value}
            return _insert(text, node, step, value)
        key, node = node.members[step]
        inner = _indent(text, key)
    return text[: node.start] + _dump(value, inner) + text[node.end :]


def _insert(text: str, node: _Node, key: str, value: Any) -> str:
    assert node.members is not None
    if node.members:
        first = min(start for start, _ in node.members.values())
        if text[:first].rpartition("\n")[2].strip():  # in one line with the brace
            head, inner, indent = ", ", "", _indent(text, node.start)
        else:
            indent = _indent(text, first)
            head, inner = f",\n{indent}", ""
        at = node.last
        if node.comma is not None:
            at, head = node.comma, head.removeprefix(",")
        return text[:at] + head + f"{json.dumps(key)}: {_dump(value, indent)}" + inner + text[at:]
    base = _indent(text, node.start)
    indent = base + UNIT
    rest = text[node.start + 1 :]
    end = "" if re.match(r"[ \t]*\r?\n", rest) else f"\n{base}"
    return text[: node.start + 1] + f"\n{indent}{json.dumps(key)}: {_dump(value, indent)}{end}" + rest


def _dump(value: Any, indent: str) -> str:
    return json.dumps(value, indent=len(UNIT), ensure_ascii=False).replace("\n", f"\n{indent}")


def _indent(text: str, at: int) -> str:
    """White space at the start of the line of ``at``."""
    found = _LINE_START.match(text, text.rfind("\n", 0, at) + 1)
    assert found is not None
    return found[0]


def _parse(text: str) -> _Node:
    try:
        node = _value(text, _skip(text, 0))
    except RecursionError:
        raise ConfigError("it is nested too deeply") from None
    rest = _skip(text, node.end)
    if rest != len(text):
        raise _fault(text, rest, "there is more behind the end")
    return node


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _value(text: str, at: int) -> _Node:
    match text[at : at + 1]:
        case "{":
            return _object(text, at)
        case "[":
            return _array(text, at)
        case '"':
            value, end = _string(text, at)
        case _:
            word = _WORD.match(text, at)
            try:
                value, end = json.loads(word[0] if word else ""), word.end() if word else at
            except ValueError:
                raise _fault(text, at, "a value is missing") from None
    return _Node(at, value, end)


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    try:
        return json.loads(found[0] if found else ""), found.end() if found else at
    except ValueError:
        raise _fault(text, at, "a string is missing, or does not end") from None


def _object(text: str, start: int) -> _Node:
    node = _Node(start, {}, members={}, last=start + 1)
    assert node.members is not None
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        if node.members and node.comma is None:
            raise _fault(text, at, "a comma or } is missing")
        key, end = _string(text, at)
        colon = _skip(text, end)
        if text[colon : colon + 1] != ":":
            raise _fault(text, colon, "a colon is missing")
        child = _value(text, _skip(text, colon + 1))
        node.members[key] = (at, child)
        node.value[key] = child.value
        node.last, node.comma = child.end, None
        at = _skip(text, child.end)
        if text[at : at + 1] == ",":
            node.comma = at + 1
            at = _skip(text, at + 1)
    node.end = at + 1
    return node


def _array(text: str, start: int) -> _Node:
    node, comma = _Node(start, []), True
    at = _skip(text, start + 1)
    while text[at : at + 1] != "]":
        if not comma:
            raise _fault(text, at, "a comma or ] is missing")
        child = _value(text, at)
        node.value.append(child.value)
        at = _skip(text, child.end)
        comma = text[at : at + 1] == ","
        at = _skip(text, at + 1) if comma else at
    node.end = at + 1
    return node


def _fault(text: str, at: int, what: str) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return ConfigError(f"line {line}, column {column}: {what}")
