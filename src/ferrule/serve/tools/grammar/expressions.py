"""Regular expressions of Lark terminals, taken apart where they match characters that a JSON string escapes. Pure."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

ESCAPED: Final = ('"', "\\", *map(chr, range(0x20)))
"""Characters that a JSON string has as escapes only (RFC 8259, 7)."""
_PLAIN: Final = r'[^"\\\x00-\x1F]'
_ESCAPE: Final = re.compile(
    r"\\(?:[xu]\{(?P<braced>[0-9A-Fa-f]+)\}|x(?P<two>[0-9A-Fa-f]{2})|u(?P<four>[0-9A-Fa-f]{4})"
    r"|U(?P<eight>[0-9A-Fa-f]{8})|(?P<property>[pP](?:\{[^}]*\}|.))|.)",
    re.DOTALL,
)
_UNESCAPED: Final = re.compile(r"[pP]\{?[LMNSZ][a-z]?\}?")
"""Letters, marks, numbers, symbols and separators, of which a JSON string escapes none."""
_SETS: Final = tuple(rf"\{each}" for each in "dDsSwWpP")
_PLACES: Final = "bBAzZ<>"
"""Escapes that stand for no character."""
_GROUP: Final = re.compile(r"\((?:\?(?:P?<[A-Za-z_]\w*>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])))?")
_REPEAT: Final = re.compile(r"[*+?]|\{[0-9]*,?[0-9]*\}")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)


@dataclass(frozen=True)
class Node:
    """Expression: alternatives, each a sequence of nodes or a character with repeats. ``text``: the whole in the
    library's syntax, with ``flags``. ``contained``: of a character, those escaped ones that it matches. ``plain``:
    whether it matches none of these at all."""

    text: str
    flags: str
    plain: bool
    contained: str = ""
    options: tuple[tuple[Node, ...], ...] = ()
    repeat: str = ""


def parsed(body: str, flags: str) -> Node:
    """The expression ``body``. Raises `ValueError` for what is not understood."""
    units = deque(characters(body, flags, "".join(ESCAPED)))
    node = _alternatives(units, _flags(flags, ""))
    if units:
        raise ValueError(f"/{body}/: a group is closed that was not opened")
    if "x" in flags and not node.plain:
        raise ValueError(f"/{body}/x: its spaces and comments are not possible beside escaped characters")
    return node


def lark_of(node: Node) -> str:
    """Body of a Lark rule; a single terminal where no character is escaped."""
    if node.plain:
        return _terminal(node.text + node.repeat, node.flags)
    if node.contained:
        escapes = "|".join(re.escape(json.dumps(each)[1:-1]) for each in node.contained)
        told = [f"/{escapes}/"]
        if node.text[0] == "[" or node.text.startswith(_SETS):
            many = "+" if node.repeat in ("*", "+") else ""
            told.append(_terminal(f"[{node.text}&&{_PLAIN}]{many}", node.flags))
        return f"({' | '.join(told)}){node.repeat}"
    return f"({' | '.join(map(_sequence, node.options))}){node.repeat}"


def _sequence(nodes: Sequence[Node]) -> str:
    """Nodes one after the other, as few terminals as can be."""
    told, plain, flags = [], "", ""
    for each in (*nodes, None):
        if each is not None and each.plain and (not plain or each.flags == flags):
            plain, flags = plain + each.text + each.repeat, each.flags
            continue
        if plain:
            told.append(_terminal(plain, flags))
        plain = ""
        if each is not None and each.plain:
            plain, flags = each.text + each.repeat, each.flags
        elif each is not None:
            told.append(lark_of(each))
    return " ".join(told) or '""'


def _terminal(text: str, flags: str) -> str:
    return f"/{text}/{flags}"


Units = deque[tuple[str, str]]


def _alternatives(units: Units, flags: str) -> Node:
    """Takes ``units`` up to the end of the group, which is not taken. A character's repeat goes with it."""
    options: list[tuple[Node, ...]] = []
    sequence: list[Node] = []
    outer = flags
    while units and units[0][0] != ")":
        unit, contained = units.popleft()
        if unit == "|":
            options.append(tuple(sequence))
            sequence = []
        elif unit[0] == "(" and unit[-1] == ")":
            flags = _flags(flags, unit)
        elif unit[0] == "(":
            inner = _alternatives(units, _flags(flags, unit))
            if not units:
                raise ValueError("a group of a regular expression has no end")
            units.popleft()
            sequence.append(Node(f"{unit}{inner.text})", flags, inner.plain, options=inner.options))
        elif _REPEAT.fullmatch(unit):
            if not sequence or sequence[-1].repeat:
                raise ValueError(f"a repeat ({unit}) of a regular expression repeats nothing")
            last = sequence.pop()
            sequence.append(Node(last.text, last.flags, last.plain, last.contained, last.options, unit))
        else:
            sequence.append(Node(unit, flags, not contained, contained))
    options.append(tuple(sequence))
    text = "|".join("".join(_within(each, outer) for each in option) for option in options)
    return Node(text, outer, all(each.plain for option in options for each in option), options=tuple(options))


def _within(node: Node, flags: str) -> str:
    """Text of ``node`` where ``flags`` hold."""
    text = node.text + node.repeat
    if node.flags == flags:
        return text
    off = "".join(sorted({*flags} - {*node.flags}))
    return f"(?{node.flags}{'-' if off else ''}{off}:{text})"


def _flags(flags: str, group: str) -> str:
    """Those within a group that begins so. Dots are classes already."""
    found = _GROUP.fullmatch(group)
    on, off = (found[1] or "", found[2] or "") if found is not None else ("", "")
    return "".join(sorted({*flags, *on} - {*off, "s", "u"}))


def characters(body: str, flags: str, sought: str) -> Iterator[tuple[str, str]]:
    """Pieces of a regular expression, each with those characters of ``sought`` that it matches as a single one: none
    for what is no character. ``.`` comes as a class."""
    stack, at = ["s" in flags], 0
    while at < len(body):
        unit = body[at]
        if unit == "\\":
            unit = _match(_ESCAPE, body, at, "an escape")
            yield from _unit(unit, sought)
        elif unit == "[":
            unit = _match(_CLASS, body, at, "a class")
            yield from _unit(unit, sought)
        elif unit == ".":
            yield from _unit(r"[\s\S]" if stack[-1] else r"[^\n]", sought)
        elif unit == "(":
            found = _GROUP.match(body, at)
            assert found is not None
            unit, on, off = found[0], found[1] or "", found[2] or ""
            dotall = "s" in on or (stack[-1] and "s" not in off)
            if found[3] == ")":
                stack[-1] = dotall
            else:
                stack.append(dotall)
            yield unit, ""
        else:
            if unit == ")" and len(stack) > 1:
                stack.pop()
            repeat = _REPEAT.match(body, at)
            unit = unit if repeat is None else repeat[0]
            yield unit, unit if unit in sought else ""
        at += len(unit)


def _match(pattern: re.Pattern[str], body: str, at: int, what: str) -> str:
    found = pattern.match(body, at)
    if found is None:
        raise ValueError(f"{body[at:]}: {what} of a regular expression has no end")
    return found[0]


def _unit(unit: str, sought: str) -> Iterator[tuple[str, str]]:
    """``unit``, an escape or a class, with the characters of ``sought`` in it."""
    if unit[0] != "[" and unit[1] in _PLACES:
        yield unit, ""  # the library says that it knows none
        return
    told = _ESCAPE.sub(_python, unit)
    if re.search(r"&&|--|~~|(?<!^)(?<!\\)\[", told):
        raise ValueError(f"{unit}: sets of sets are not possible in a text that is written as JSON")
    if told in ("", "[]", "[^]"):
        yield unit, sought if told == "[^]" else ""
        return
    try:
        pattern = re.compile(told if unit[0] == "[" else f"[{told}]", re.ASCII)
    except re.error as error:
        raise ValueError(f"{unit}: {error}") from None
    yield unit, "".join(each for each in sought if pattern.fullmatch(each))


def _python(found: re.Match[str]) -> str:
    """An escape of Rust's in Python's words, as far as it concerns characters of ASCII."""
    code = found["braced"] or found["two"] or found["four"] or found["eight"]
    if code is not None:
        return f"\\U{int(code, 16):08x}"
    if found["property"] is None:
        return found[0]
    if not _UNESCAPED.fullmatch(found["property"]):
        raise ValueError(f"{found[0]}: of Unicode's classes only L, M, N, S and Z are possible here")
    return "" if found[0][1] == "p" else r"\x00-\x1f\x22\x5c<"
