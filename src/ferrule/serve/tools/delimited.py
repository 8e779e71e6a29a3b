"""Formats whose calls stand between an opening and a closing marker, perhaps with a section around all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ferrule.serve.tools.arguments import MalformedError, OpenValueError, call, call_of, read_json, typed
from ferrule.serve.tools.parts import Block, Call, Markers, Tools

MOST_CLOSES = 16
"""Closing markers that a call may hold within its values; each costs a reading of the whole call."""
THINK = (("<think>", "</think>"),)


@dataclass(frozen=True)
class Delimited:
    """Calls between one of ``opens`` and ``closes``. ``section``: markers around all calls, its beginnings and its
    ends. ``body``: the call that a text between the markers says; it raises `MalformedError`. ``quoted``: the body has
    strings of JSON, in which a closing marker does not close. ``lenient``: ``body`` for values without an end.
    ``noise``: what a section has before its first call says nothing."""

    opens: tuple[str, ...]
    closes: str
    body: Callable[[str, Tools], Call]
    section: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    quoted: bool = False
    lenient: Callable[[str, Tools], Call] | None = None
    noise: bool = False
    special: tuple[str, ...] = ()
    think: tuple[tuple[str, str], ...] = THINK
    markers: Markers = field(init=False)

    def __post_init__(self) -> None:
        begins, ends = self.section
        object.__setattr__(self, "markers", Markers((*begins, *self.opens, *ends), think=self.think))

    def read(self, text: str, tools: Tools, *, after_call: bool, ended: bool) -> Block | None:
        begins, ends = self.section
        for end in ends:
            if text.startswith(end):
                return Block(() if after_call else None, len(end))
        at = 0
        for begin in begins:
            if text.startswith(begin):
                at = len(text) - len(text[len(begin) :].lstrip())
                break
        if at and self.noise:
            marks = [found for each in (*self.opens, *ends) if (found := text.find(each, at)) >= 0]
            if not marks and not ended:
                return None
            if marks and not text.startswith(ends, min(marks)):
                at = min(marks)
        opening = next((each for each in self.opens if text.startswith(each, at)), None)
        if opening is None:
            rest = text[at:]
            undecided = any(each.startswith(rest) for each in self.opens)
            if at and rest.startswith(ends):
                return Block((), at)  # an empty section; its end comes next
            undecided = undecided or (at > 0 and any(each.startswith(rest) for each in ends))
            return None if undecided else Block(None, at)
        return self._read_call(text, at + len(opening), tools, ended)

    def _read_call(self, text: str, at: int, tools: Tools, ended: bool) -> Block | None:
        close = first = text.find(self.closes, at)
        tried = 0
        while close >= 0:
            tried += 1
            if tried > MOST_CLOSES:
                return self._forgotten(text, at, first, tools) or Block(None, first + len(self.closes))
            inside = text[at:close]
            end = close + len(self.closes)
            try:
                return Block((self.body(inside, tools),), end)
            except OpenValueError:
                pass
            except MalformedError:
                if not self.quoted or not _string_is_open(inside):
                    return Block(None, end)
            close = text.find(self.closes, end)
        return self._forgotten(text, at, first, tools) if ended else None

    def _forgotten(self, text: str, at: int, close: int, tools: Tools) -> Block | None:
        """A call that lacks its closing marker, or of which a value lacks its own."""
        body = self.body if close < 0 or self.lenient is None else self.lenient
        inside, end = (text[at:], len(text)) if close < 0 else (text[at:close], close + len(self.closes))
        try:
            return Block((body(inside, tools),), end)
        except MalformedError:
            return None


_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _string_is_open(text: str) -> bool:
    return '"' in _QUOTED.sub("", text)


def _hermes(text: str, _: Tools) -> Call:
    return call_of(read_json(text.strip()))


HERMES = Delimited(("<tool_call>",), "</tool_call>", _hermes, quoted=True, special=("<tool_call>", "</tool_call>"))
"""Hermes 2 Pro, Qwen2.5, Qwen3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""


_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]*)>\n?((?:(?!\n<parameter=).)*?)\n?</parameter>\s*(?=<parameter=|$)", re.DOTALL
)


def _trimmed(value: str) -> str:
    """``value`` without the line breaks by which the format sets it off."""
    return value.removeprefix("\n").removesuffix("\n")


def _qwen_name(text: str) -> tuple[str, str]:
    name, found, rest = text.partition(">")
    if not found or "<" in name:
        raise MalformedError("a function has a name")
    return name.strip(), rest


def _qwen_xml(text: str, tools: Tools) -> Call:
    name, rest = _qwen_name(text)
    given, at = _pairs(_PARAMETER, rest, name, tools)
    if rest[at:].strip():
        raise OpenValueError("a value has no end") if "<parameter=" in rest[at:] else MalformedError("no parameters")
    return call(name, given)


def _qwen_without_ends(text: str, tools: Tools) -> Call:
    name, rest = _qwen_name(text)
    pieces = re.split(r"<parameter=([^>\n]*)>", rest)
    told = zip(pieces[1::2], pieces[2::2], strict=True)
    values = {key.strip(): _trimmed(value.rstrip().removesuffix("</parameter>")) for key, value in told}
    return call(name, {key: typed(value, tools.schema(name, key)) for key, value in values.items()})


def _pairs(pattern: re.Pattern[str], text: str, name: str, tools: Tools) -> tuple[dict[str, Any], int]:
    """Values of the keys and values that ``pattern`` finds in a row, and where that ends."""
    given, at = dict[str, Any](), 0
    while (found := pattern.match(text, at)) is not None:
        key = found[1].strip()
        given[key], at = typed(found[2], tools.schema(name, key)), found.end()
    return given, at


QWEN_XML = Delimited(
    ("<function=",),
    "</function>",
    _qwen_xml,
    lenient=_qwen_without_ends,
    section=(("<tool_call>",), ("</tool_call>",)),
    special=("<tool_call>", "</tool_call>"),
)
"""Qwen3-Coder, Qwen3.5: ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``."""


_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*(?=<arg_key>|$)", re.DOTALL)


def _glm(text: str, tools: Tools) -> Call:
    name = text.partition("<arg_key>")[0]
    rest, name = text[len(name) :], name.strip()
    given, at = _pairs(_ARGUMENT, rest, name, tools)
    if "<" in name or (at != len(rest) and "<arg_value>" not in rest[at:]):
        raise MalformedError("arguments are pairs of keys and values")
    if at != len(rest):
        raise OpenValueError("a value has no end")
    return call(name, given)


def _glm_without_ends(text: str, tools: Tools) -> Call:
    return _glm(f"{text}</arg_value>", tools)


_GLM_TAGS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
GLM = Delimited(("<tool_call>",), "</tool_call>", _glm, lenient=_glm_without_ends, special=_GLM_TAGS)
"""GLM 4.5 and later: ``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``."""


_MINIMAX_PARAMETER = re.compile(r'\s*<parameter name="([^"]*)">\n?(.*?)\n?</parameter>\s*', re.DOTALL)


def _minimax(text: str, tools: Tools) -> Call:
    name, found, rest = text.partition('">')
    given, at = _pairs(_MINIMAX_PARAMETER, rest, name, tools)
    if not found or rest[at:].strip():
        raise MalformedError("an invocation has a name and parameters")
    return call(name, given)


MINIMAX = Delimited(
    ('<invoke name="',),
    "</invoke>",
    _minimax,
    section=(("<minimax:tool_call>",), ("</minimax:tool_call>",)),
    special=("<minimax:tool_call>", "</minimax:tool_call>"),
)
"""MiniMax M2: ``<minimax:tool_call><invoke name="…"><parameter name="…">…</parameter></invoke>…``."""


_DSML_PARAMETER = re.compile(
    r'\s*<｜DSML｜ ?parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜ ?parameter>\s*',
    re.DOTALL,
)


def _dsml(text: str, tools: Tools) -> Call:
    name, found, rest = text.partition('"')
    if rest.strip() == "/":
        return call(name, {})
    given = {}
    head, closed, rest = rest.partition(">")
    at = 0
    for each in _DSML_PARAMETER.finditer(rest):
        if each.start() != at:
            break
        given[each[1]], at = each[3] if each[2] == "true" else read_json(each[3]), each.end()
    if not found or not closed or head.strip() or rest[at:].strip():
        raise MalformedError("an invocation has a name and parameters")
    return call(name, given)


@dataclass(frozen=True)
class _Dsml(Delimited):
    """`Delimited` whose calls may also be a single tag, ``<｜DSML｜invoke name="…"/>``."""

    def _read_call(self, text: str, at: int, tools: Tools, ended: bool) -> Block | None:
        tag = text.find(">", at)
        if tag >= 0 and text[tag - 1] == "/" and "<" not in text[at:tag]:
            return Block((call(text[at : tag - 1].rstrip().removesuffix('"'), {}),), tag + 1)
        return super()._read_call(text, at, tools, ended)


def _dsml_form(gap: str) -> _Dsml:
    kinds = ("function_calls", "tool_calls", "calls")
    begins = tuple(f"<｜DSML｜{gap}{kind}>" for kind in kinds)
    ends = tuple(f"</｜DSML｜{gap}{kind}>" for kind in kinds)
    mark = "｜DSML｜"
    return _Dsml(
        (f'<{mark}{gap}invoke name="',), f"</{mark}{gap}invoke>", _dsml, section=(begins, ends), special=(mark,)
    )


DSML = _dsml_form("")
"""DeepSeek V3.2 and V4: elements ``invoke`` and ``parameter``, marked as DSML."""
DSML_SPACED = _dsml_form(" ")
"""DeepSeek V4.1: the same with a space."""


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_SEP = "<｜tool▁sep｜>"


def _deepseek(text: str, _: Tools) -> Call:
    head, found, rest = text.partition(_SEP)
    if not found:
        raise MalformedError("a call has a name and arguments")
    if head.strip() != "function" or "```" not in rest:
        return call(head, read_json(rest.strip()))
    name, _line, told = rest.partition("\n")  # V3 and R1: the kind first, arguments in a fence
    fenced = told.strip().removeprefix("```json").removesuffix("```")
    return call(name, read_json(fenced.strip()))


DEEPSEEK = Delimited(
    (_DEEPSEEK[2],),
    _DEEPSEEK[3],
    _deepseek,
    section=((_DEEPSEEK[0],), (_DEEPSEEK[1],)),
    quoted=True,
    special=(*_DEEPSEEK, _SEP),
)
"""DeepSeek V3, R1 and V3.1: a name and JSON, between special tokens."""


_KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>")
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"


def _kimi(text: str, _: Tools) -> Call:
    identity, found, rest = text.partition(_KIMI_ARGUMENTS)
    identity = identity.strip()
    name = identity.removeprefix("functions.").rpartition(":")
    if not found:
        raise MalformedError("a call has an id and arguments")
    return call(name[0] if name[2].isdigit() else name[2], read_json(rest.strip()), identity)


KIMI = Delimited(
    (_KIMI[2],),
    _KIMI[3],
    _kimi,
    section=((_KIMI[0],), (_KIMI[1],)),
    quoted=True,
    noise=True,
    special=(*_KIMI, _KIMI_ARGUMENTS),
)
"""Kimi K2: ``functions.NAME:INDEX``, which is the call's id, and JSON, between special tokens."""
