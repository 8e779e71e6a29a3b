"""Grammar of texts as the grammar of the same texts within a JSON string, where quotes, backslashes and control
characters are escaped. Pure.

An escape is a terminal of its own: the library's lexer takes the longest match and does not go back, so that one which
may go on with a backslash would keep what follows from beginning with one, as the end of a line does. So terminals that
match such characters become rules, and their regular expressions are taken apart (`expressions`).
"""

from __future__ import annotations

import json
import re
from typing import Final

from ferrule.serve.tools.grammar.expressions import ESCAPED, characters, lark_of, parsed
from ferrule.serve.tools.grammar.lark import UnconstrainableError, quoted

_IMPORTED: Final = {
    "ESCAPED_STRING": r'/"(\\.|[^"\\])*"/',
    "WS_INLINE": r"/[ \t]+/",
    "WS": r"/[ \t\f\r\n]+/",
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "SH_COMMENT": r"/#[^\n]*/",
    "CPP_COMMENT": r"/\/\/[^\n]*/",
    "SQL_COMMENT": r"/--[^\n]*/",
    "C_COMMENT": r"/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//",
}
"""Terminals of Lark's library (grammars/common.lark) that match such characters; the others need no change."""
_STRING: Final = r'"(?:\\.|[^"\\\n])*"'
_NAME: Final = r"_?[A-Z][_A-Z0-9-]*"
_TOKEN: Final = re.compile(
    rf"(?P<comment>(?:\#|//)[^\n]*)|(?P<range>{_STRING}[ \t]*\.\.[ \t]*{_STRING})|(?P<string>{_STRING}i?)"
    r"|(?P<regexp>/(?:\\.|[^/\\])+/[imslux]*)|(?P<options>%llguidance\s*(?=\{))"
    r"|(?P<import>%import[ \t]+common\b[^\n#/]*)"
    r"|(?P<other>%(?:json|regex|lark|ignore)\b|<[^<>\s]+>|@[\w-]+|~(?!\s*[0-9]))"
    r"|(?P<define>(?:(?<=\n)|(?<![\s\S]))[ \t]*[!?]*[A-Za-z_][\w-]*[ \t]*(?P<limits>\[[^\]]*\])?[ \t]*:)"
    rf"|(?P<name>\b{_NAME}\b)"
    r"|(?P<rest>%?[\w-]+|[^\w\"/%<@~#\n]+|.)",
    re.DOTALL,
)


def lark_in_json(source: str) -> str:
    """The Lark grammar ``source``, of what JSON strings have between their quotes. Raises `UnconstrainableError` for
    what cannot be told so, with its line."""
    return _Grammar(_with_imports(source)).told()


class _Grammar:
    """Grammar, token by token. ``escapes``: definitions with an escape in them, and which terminals each refers to."""

    def __init__(self, source: str) -> None:
        self._parts: list[tuple[str, str]] = []
        """Texts to be told, and the names of the terminals that they are."""
        self._escapes: set[str] = set()
        self._refers: dict[str, set[str]] = {}
        self._bound: dict[str, str] = {}
        """Definitions that must be terminals, and why."""
        self._name = ""
        at = 0
        while (found := _TOKEN.match(source, at)) is not None:
            at = found.end()
            try:
                if found.lastgroup == "options":
                    at = json.JSONDecoder().raw_decode(source, at)[1]
                    self._say(source[found.start() : at])
                else:
                    self._take(found)
            except ValueError as error:
                line = source.count("\n", 0, found.start()) + 1
                raise UnconstrainableError(f"line {line} of a grammar: {error}") from None

    def told(self) -> str:
        rules = set(self._escapes)
        while more := {name for name, refers in self._refers.items() if refers & rules} - rules:
            rules |= more
        for name in rules & self._bound.keys():
            raise UnconstrainableError(
                f"{name} of a grammar has {self._bound[name]!r}, which is not possible with quotes, backslashes or "
                "control characters in a text that is written as JSON"
            )
        return "".join(f"{name.lower()}-text" if name in rules else text for text, name in self._parts)

    def _take(self, found: re.Match[str]) -> None:
        text = found[0]
        match found.lastgroup:
            case "string":
                self._expression(_string(text), text)
            case "range":
                first, last = (ord(_read(each)) for each in re.findall(_STRING, text))
                node = parsed(rf"[\x{{{first:X}}}-\x{{{last:X}}}]", "")
                self._expression(text if node.plain else lark_of(node), text)
            case "regexp":
                body, _, flags = text[1:].rpartition("/")
                node = parsed(body, flags)
                self._expression(text if node.plain else lark_of(node), text)
            case "other":
                raise ValueError(f"{text!r} is not possible in a text that is written as JSON")
            case "define":
                self._define(text, found["limits"])
            case "name":
                self._say(text, text)
                self._refers.setdefault(self._name, set()).add(text)
            case _:
                if "&" in text:
                    self._bound[self._name] = "&"
                self._say(text)

    def _define(self, text: str, limits: str | None) -> None:
        name = re.sub(r"\[.*|[\s!?:]", "", text, flags=re.DOTALL)
        self._name = name
        if limits is not None:
            self._bound[name] = limits
        before, _, after = text.partition(name)
        self._say(before)
        self._say(name, name if re.fullmatch(_NAME, name) else "")
        self._say(after)

    def _expression(self, told: str, text: str) -> None:
        if told != text:
            self._escapes.add(self._name)
        self._say(told)

    def _say(self, text: str, name: str = "") -> None:
        self._parts.append((text, name))


def runs_over_lines(source: str) -> bool:
    """Whether a terminal of the Lark grammar ``source`` may match both ends of lines and ``<``."""
    tokens = list(_TOKEN.finditer(source))
    if any(re.search("ESCAPED_STRING|C_COMMENT", found["import"] or "") for found in tokens):
        return True
    for body, _, flags in (found["regexp"][1:].rpartition("/") for found in tokens if found["regexp"]):
        if len({each for _, contained in characters(body, flags, "\n<") for each in contained}) > 1:
            return True
    return False


def _string(text: str) -> str:
    """A literal cut at its escapes."""
    flag = "i" if text.endswith("i") else ""
    pieces = re.split(r'([\x00-\x1f"\\])', _read(text.removesuffix("i")))
    if len(pieces) == 1:
        return text
    told = (quoted(json.dumps(each)[1:-1]) if each in ESCAPED else quoted(each) + flag for each in pieces if each)
    return f"({' '.join(told)})"


def _read(text: str) -> str:
    value: str = json.loads(re.sub(r"\\(?:x([0-9A-Fa-f]{2})|.)", lambda m: f"\\u00{m[1]}" if m[1] else m[0], text))
    return value


def _with_imports(source: str) -> str:
    """With those written out that match escaped characters, each in its line."""

    def told(found: re.Match[str]) -> str:
        alias = re.fullmatch(r"%import[ \t]+common\.(\w+)[ \t]*->[ \t]*(\w+)\s*", found[0])
        pairs = [(alias[1], alias[2])] if alias else [(name, name) for name in re.findall(r"\w+", found[0])[2:]]
        lines = [
            f"{own}: {_IMPORTED[name]}" if name in _IMPORTED else f"%import common.{name} -> {own}"
            for name, own in pairs
        ]
        return "\n".join(lines) + " "

    return _TOKEN.sub(lambda found: told(found) if found["import"] else found[0], source)
