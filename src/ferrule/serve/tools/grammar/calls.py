"""Grammars of tool calls, one for each format that is read: what a model of the family writes by its own template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ferrule.serve.tools.grammar.lark import ANY, Lark, either, quoted
from ferrule.serve.tools.grammar.values import Arguments, Pairs, Schema, as_json, checked, keywords

Schemas = Mapping[str, Schema]
"""Schema of the arguments of each tool by name."""
BAR: Final = "｜"


@dataclass(frozen=True)
class Shape:
    """Calls of one format. ``begin`` and ``end`` stand around all of them, ``between`` two. ``head``: what a call
    of a name has before its arguments, with the text before that; ``tail``: what it has behind them. ``unlike``: body
    of a terminal of texts that would be read as calls, for a format without marks."""

    begin: str
    head: Callable[[Lark, str, str], str]
    arguments: Arguments
    tail: str
    between: str
    end: str
    unlike: Callable[[Schemas], str] | None = None

    def calls(self, lark: Lark, tools: Schemas, *, parallel: bool, begun: bool = False) -> str:
        """Rule of one call or more. ``begun``: from behind ``begin`` on."""
        first = self._one(lark, tools, "" if begun else self.begin)
        more = f"{lark.literal(self.between)} {self._one(lark, tools, '')}" if parallel else ""
        return lark.rule(f"{first} {f'({more})*' if more else ''} {lark.literal(self.end)}")

    def _one(self, lark: Lark, tools: Schemas, before: str) -> str:
        """Rule of a call behind ``before``, which is one literal with its head: where free text may come instead, that
        is told from a call only by all of it."""
        tail = lark.literal(self.tail)
        told = {name: self.arguments(lark, schema) for name, schema in tools.items()}
        rules = {name: body and lark.rule(body) for name, body in told.items()}
        return lark.rule(" | ".join(f"{self.head(lark, name, before)} {rules[name]} {tail}" for name in tools))


def _named(before: str, after: str, name: Callable[[str], str] = checked) -> Callable[[Lark, str, str], str]:
    return lambda lark, tool, begin: lark.literal(begin + before + name(tool) + after)


def _json_shape(begin: str, between: str, end: str, key: str = "arguments") -> Shape:
    head = _named('{"name": ', f', "{key}": ', lambda name: json.dumps(name, ensure_ascii=False))
    return Shape(begin, head, as_json, "}", between, end)


def _llama() -> Shape:
    plain = _json_shape("", "; ", "", "parameters")
    return Shape("", plain.head, as_json, "}", "; ", "", lambda _: f'(/\\s*/ "{{" /\\s*/ "\\"name\\"" {ANY})')


def _pythonic() -> Shape:
    def unlike(tools: Schemas) -> str:
        return f'(/\\s*/ "[" /\\s*/ {either(*map(quoted, tools))} /\\s*/ "(" {ANY})'

    return Shape("[", _named("", "("), keywords, ")", ", ", "]", unlike)


def _mistral(template: str) -> Shape:
    if "[ARGS]" in template:
        return Shape("[TOOL_CALLS]", _named("", "[ARGS]"), as_json, "", "[TOOL_CALLS]", "")
    return _json_shape("[TOOL_CALLS][", ", ", "]")


def _deepseek(template: str) -> Shape:
    begin, end, call, done, sep = (
        f"<{BAR}tool▁{name}{BAR}>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
    )
    fenced = "```json" in template
    head = _named(f"function{sep}", "\n```json\n") if fenced else _named("", sep)
    return Shape(begin + call, head, as_json, "\n```" if fenced else "", done + call, done + end)


def _kimi() -> Shape:
    def head(lark: Lark, name: str, before: str) -> str:
        identity, arguments = lark.literal(f"{before}functions.{checked(name)}:"), "<|tool_call_argument_begin|>"
        return f"{identity} {lark.terminal('/[0-9]{1,4}/')} {lark.literal(arguments)}"

    begin, done = "<|tool_call_begin|>", "<|tool_call_end|>"
    section, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    return Shape(section + begin, head, as_json, "", done + begin, done + end)


def _qwen_xml() -> Shape:
    pairs = Pairs("<parameter=", (">\n", ">\n"), "\n</parameter>\n", ("<parameter=", "</function>", "<tool_call>"))
    between = "\n</tool_call>\n<tool_call>\n"
    head = _named("<function=", ">\n")
    return Shape("<tool_call>\n", head, pairs.rules, "</function>", between, "\n</tool_call>")


def _glm(template: str) -> Shape:
    gap = "\n" if "</arg_key>\n" in template else ""
    named = f"</arg_key>{gap}<arg_value>"
    pairs = Pairs("<arg_key>", (named, named), f"</arg_value>{gap}", ("<arg_key>", "</tool_call>"))
    head = _named("", gap)
    return Shape("<tool_call>", head, pairs.rules, "", f"</tool_call>{gap}<tool_call>", "</tool_call>")


def _minimax() -> Shape:
    pairs = Pairs('<parameter name="', ('">', '">'), "</parameter>\n", ("<parameter", "</invoke>"), trims=True)
    head = _named('<invoke name="', '">\n')
    return Shape("<minimax:tool_call>\n", head, pairs.rules, "</invoke>\n", "", "</minimax:tool_call>")


def _dsml(template: str, gap: str) -> Shape:
    mark = f"{BAR}DSML{BAR}{gap}"
    kind = next((each for each in ("function_calls", "tool_calls", "calls") if mark + each in template), "tool_calls")
    named = ('" string="true">', '" string="false">')
    pairs = Pairs(f'<{mark}parameter name="', named, f"</{mark}parameter>\n", ())
    head = _named(f'<{mark}invoke name="', '">\n')
    return Shape(f"<{mark}{kind}>\n", head, pairs.rules, f"</{mark}invoke>\n", "", f"</{mark}{kind}>")


_SHAPES: Final[Mapping[str, Callable[[str], Shape]]] = {
    "hermes": lambda _: _json_shape("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    "qwen-xml": lambda _: _qwen_xml(),
    "glm": _glm,
    "minimax": lambda _: _minimax(),
    "deepseek": _deepseek,
    "dsml": lambda template: _dsml(template, ""),
    "dsml-spaced": lambda template: _dsml(template, " "),
    "kimi": lambda _: _kimi(),
    "mistral": _mistral,
    "llama-json": lambda _: _llama(),
    "pythonic": lambda _: _pythonic(),
}


def shape_of(family: str, template: str) -> Shape:
    """Calls of a ``family`` (one of `families.FORMATS`), in the variant that its chat ``template`` has."""
    return _SHAPES[family](template)
