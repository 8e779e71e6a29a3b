"""Arguments that a format writes without JSON around them: by the tool's schema, one rule for each parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrule.engine.grammar import json_rule
from ferrule.serve.tools.arguments import kinds_of
from ferrule.serve.tools.grammar.in_json import lark_in_json, runs_over_lines
from ferrule.serve.tools.grammar.lark import ANY, Lark, UnconstrainableError, either, quoted

NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_SHARED: Final = ("$defs", "definitions")
_TOP: Final = {"type", "properties", "required", "additionalProperties", *_SHARED}
_NOTES: Final = {"title", "description", "default", "examples", "deprecated", "$comment", "$schema", "strict"}
"""Keywords that constrain nothing."""
_STRING: Final = {"type", "enum", "const", "minLength", "maxLength", "pattern", "format", *_NOTES}
_DIGITS: Final = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_SPAN: Final = r"([0-9]+D(T[0-9]+H)?|T([0-9]+H([0-9]+M)?([0-9]+S)?|[0-9]+M([0-9]+S)?|[0-9]+S)|[0-9]+W)"
_FORMATS: Final = {
    "date": _DIGITS,
    "time": _CLOCK,
    "date-time": f"{_DIGITS}T{_CLOCK}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,5}}",
    "duration": f"P{_SPAN}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:\/?#@!$&'()*+,;=%-]+",
}
"""Of JSON schema's formats (RFC 3339, 4122, 5321, 1123, 3986), in forms that programs agree on; none is wider
than its format, but for the days of a month."""


@dataclass(frozen=True)
class Written:
    """Arguments that are one text, ``name``, which follows the Lark grammar ``source``."""

    name: str
    source: str


Schema = Mapping[str, Any] | Written | None
"""Of a call's arguments; None where they may be any object."""


def properties_of(schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool]]:
    """Schemas of the parameters by name, and whether they must be given. Raises `UnconstrainableError` for an object
    that says more of them than that."""
    strange = schema.keys() - _TOP - _NOTES
    if strange:
        raise UnconstrainableError(f"{min(strange)!r} of an object of arguments is not possible in this model's format")
    given = schema.get("properties") or {}
    required = schema.get("required") or ()
    shared = {name: schema[name] for name in _SHARED if name in schema}
    named = {**given, **{name: {} for name in required if name not in given}}
    return {
        name: ({**shared, **each} if isinstance(each, dict) and shared else each, name in required)
        for name, each in named.items()
    }


def string_of(schema: Any) -> str | None:
    """Terminal's body of the texts that ``schema`` allows, where that is a text for the format's reader, too (as
    `typed` has it); None where the value is written as JSON. Raises `UnconstrainableError`."""
    kinds = kinds_of(schema)
    if kinds not in ({"string"}, {"string", "null"}):
        return None
    options = [each for name in ("anyOf", "oneOf") for each in schema.get(name) or ()]
    if options:
        told = [string_of(each) for each in options if kinds_of(each) != {"null"}]
        return either(*(each for each in told if each is not None))
    strange = schema.keys() - _STRING - set(_SHARED)
    if strange:
        raise UnconstrainableError(f"{min(strange)!r} of a text is not possible in this model's format")
    if "const" in schema:
        return quoted(schema["const"])
    if "enum" in schema:
        return either(*(quoted(each) for each in schema["enum"] if isinstance(each, str)))
    parts = [ANY]
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if least or most != "":
        parts.append(f"/(?s:.{{{least},{most}}})/")
    if "pattern" in schema:
        parts.append(_searched(schema["pattern"]))
    if "format" in schema:
        if schema["format"] not in _FORMATS:
            raise UnconstrainableError(
                f"the format {schema['format']!r} of a text is not possible in this model's format"
            )
        parts.append(f"/{_FORMATS[schema['format']]}/")
    return f"({' & '.join(parts)})"


def _searched(pattern: str) -> str:
    """Texts in which ``pattern`` is found: JSON schema's patterns are not anchored."""
    body = pattern.removeprefix("^")
    closed = body.endswith("$") and not body.endswith("\\$")
    body = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", body.removesuffix("$") if closed else body)
    begins = "" if pattern.startswith("^") else "(?s:.*)"
    return f"/{begins}({body}){'' if closed else '(?s:.*)'}/"


@dataclass(frozen=True)
class Pairs:
    """Parameters one after the other, each between marks. ``opens``: before its name. ``named``: between name and
    value, of texts and of JSON. ``closes``: after the value. ``spells``: marks that no text may spell.
    ``trims``: the format's reader drops a line break at the ends of a text."""

    opens: str
    named: tuple[str, str]
    closes: str
    spells: tuple[str, ...]
    trims: bool = False

    def rules(self, lark: Lark, schema: Schema) -> str:
        if isinstance(schema, Written):
            return self._written(lark, schema)
        if schema is None:
            key = f"{lark.literal(self.opens)} {lark.terminal(f'/{NAME.pattern}/')} {lark.literal(self.named[0])}"
            return f"({key} {self._text(lark, ANY)})*"
        made = []
        for name, (own, needed) in properties_of(schema).items():
            body = self._pair(lark, checked(name), own)
            made.append(body if needed else f"({body})?")
        return " ".join(made)

    def _written(self, lark: Lark, schema: Written) -> str:
        """The text, and the mark behind it. Terminals take as much as they can: none may take the mark's beginning."""
        bounded = lark.bounds(self.closes)
        if not bounded and not (self.closes.startswith("\n") or self.trims):
            raise UnconstrainableError("a grammar of a text is not possible in this model's format")
        if not bounded and runs_over_lines(schema.source):
            raise UnconstrainableError(
                "a terminal that matches both '<' and ends of lines is not possible in this model's format, where a "
                "tag on its own line ends the text"
            )
        begin = lark.literal(self.opens + checked(schema.name) + self.named[0])
        line = "" if bounded else '"\\n"?'
        return f"{begin} {lark.grammar(schema.source)} {line} {lark.literal(self.closes.removeprefix(chr(10)))}"

    def _pair(self, lark: Lark, name: str, schema: Any) -> str:
        text = string_of(schema)
        if text is None:
            return self._json(lark, name, json_rule(schema))
        same = self.named[0] == self.named[1]
        nullable = "null" in kinds_of(schema)
        if nullable and same:
            text = either(text, quoted("null"))
        body = f"{lark.literal(self.opens + name + self.named[0])} {self._text(lark, text)}"
        return either(body, self._json(lark, name, quoted("null"))) if nullable and not same else body

    def _json(self, lark: Lark, name: str, value: str) -> str:
        return f"{lark.literal(self.opens + name + self.named[1])} {value} {lark.literal(self.closes)}"

    def _text(self, lark: Lark, body: str) -> str:
        if self.trims:
            body = f'({body} & ~(("\\n" {ANY}) | ({ANY} "\\n")))'
        return lark.until(self.closes, of=body, without=(self.closes.strip(), *self.spells))


def keywords(lark: Lark, schema: Schema) -> str:
    """Arguments as Python writes them, ``key=value, …``; literals of JSON are read there, too."""
    if isinstance(schema, Written):
        return f"{quoted(f'{schema.name}=')} {_string(lark, schema)}"
    if schema is None:
        pair = f'/[A-Za-z_][A-Za-z0-9_]*/ "=" {json_rule({})}'
        return f'({pair} (", " {pair})*)?'
    pairs = [
        (f"{quoted(f'{name}=')} {json_rule(own)}", needed)
        for name, (own, needed) in properties_of(schema).items()
        if _is_identifier(name)
    ]
    return _listed(lark, pairs, "", {})


def _listed(lark: Lark, pairs: Sequence[tuple[str, bool]], comma: str, known: dict[tuple[int, str], str]) -> str:
    """``pairs`` in their order with commas between them, those that need not be there with or without."""
    if not pairs:
        return ""
    key = len(pairs), comma
    if key not in known:
        (body, needed), rest = pairs[0], pairs[1:]
        taken = f"{comma} {body} {_listed(lark, rest, quoted(', '), known)}"
        left = _listed(lark, rest, comma, known)
        known[key] = lark.rule(taken if needed else f"{taken} | {left or quoted('')}")
    return known[key]


def _is_identifier(name: str) -> bool:
    if not name.isidentifier():
        raise UnconstrainableError(f"the name {name!r} is not possible in this model's format")
    return True


def checked(name: str) -> str:
    """``name``, if it can stand between a format's marks."""
    if not NAME.fullmatch(name):
        raise UnconstrainableError(f"the name {name!r} is not possible in this model's format")
    return name


def _string(lark: Lark, schema: Written) -> str:
    """The text as a string of JSON."""
    mark = quoted('"')
    return f"{mark} {lark.grammar(lark_in_json(schema.source))} {mark}"


Arguments = Callable[[Lark, Schema], str]


def as_json(lark: Lark, schema: Schema) -> str:
    if isinstance(schema, Written):
        key = quoted("{" + json.dumps(schema.name) + ":")
        return f'{key} " "? {_string(lark, schema)} {quoted("}")}'
    return json_rule({"type": "object"} if schema is None else schema)
