"""Grammar in llguidance's variant of Lark's notation, put together from pieces of a format.

A mark of a format is a special token in some models' tokenizers and plain text in others: the first is named by its id,
since the library keeps special tokens out of text; text up to the second ends where that is first complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from ferrule.engine import Constraint

ANY = "/(?s:.*)/"
"""Terminal of any text, also none."""


class UnconstrainableError(ValueError):
    """A schema or grammar that arguments cannot be held to in a model's format."""


class Lark:
    """Grammar that grows by rules. ``special``: ids of the tokenizer's special tokens by name."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        names = sorted(special, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._rules: list[str] = []
        self._names: dict[str, str] = {}
        self.grammars: dict[str, Constraint] = {}
        """Those that `grammar` refers to, by name."""

    def source(self, start: str) -> str:
        """All of it, for answers that follow the rule's body ``start``."""
        return "\n".join((f"start: {start}", *self._rules))

    def rule(self, body: str, options: str = "") -> str:
        """The name of a rule with ``body``."""
        return self._named(f"{options}: {body}", "r")

    def terminal(self, body: str) -> str:
        return self._named(f": {body}", "T")

    def grammar(self, source: str) -> str:
        """What another Lark grammar allows, whose rules have names of their own."""
        name = f"own{len(self.grammars)}"
        self.grammars[name] = Constraint("lark", source)
        return f"@{name}"

    def literal(self, text: str) -> str:
        """``text`` to the letter. Empty text is no piece."""
        return " ".join(self._token(piece) if special else quoted(piece) for piece, special in self._pieces(text))

    def is_special(self, mark: str) -> bool:
        """Whether ``mark`` is one token of its own."""
        return mark in self._special

    def text(self, *, without: Collection[str] = (), beside: str = "", allowed: Collection[str] = ()) -> str:
        """Any text, also none, in which no mark of ``without`` is spelt, and that does not match the terminal's body
        ``beside``; between its pieces there may be the special tokens of ``allowed``."""
        plain = self.terminal(self.texts(without, beside))
        tokens = [self._token(mark) for mark in allowed if self.is_special(mark)]
        return self.rule(f"({' | '.join((plain, *tokens))})*") if tokens else plain

    def bounds(self, mark: str) -> bool:
        """Whether ``mark`` begins with a token of its own, which no text before it can have taken."""
        return self._pieces(mark)[0][1]

    def until(self, mark: str, *, of: str = "", without: Collection[str] = ()) -> str:
        """Text, and the first ``mark`` after it. ``of``: a terminal's body that the text must match."""
        pieces = self._pieces(mark)
        texts = self.texts((mark, *without))
        texts = f"({texts} & {of})" if of else texts
        first, special = pieces[0]
        if special:
            return f"{self.terminal(texts)} {self.literal(mark)}"
        if len(pieces) == 1:
            return self.rule(self.terminal(f"{texts} {quoted(first)}"), "[lazy]")
        # A special token bounds the text before it: the longest text that ends so.
        return f"{self.terminal(f'{texts} {quoted(first)}')} {self.literal(mark[len(first) :])}"

    def texts(self, without: Collection[str], beside: str = "") -> str:
        """Body of a terminal: any text without these marks."""
        spelt = f"({ANY} ({' | '.join(quoted(mark) for mark in dict.fromkeys(without))}) {ANY})" if without else ""
        unwanted = " | ".join(each for each in (spelt, beside) if each)
        return f"({ANY} & ~({unwanted}))" if unwanted else ANY

    def _pieces(self, text: str) -> list[tuple[str, bool]]:
        """``text`` cut at its special tokens, and which pieces are such."""
        made, at = [], 0
        for found in self._marks.finditer(text):
            made += [(text[at : found.start()], False), (found[0], True)]
            at = found.end()
        return [each for each in (*made, (text[at:], False)) if each[0]]

    def _token(self, name: str) -> str:
        return f"<[{self._special[name]}]>"

    def _named(self, body: str, kind: str) -> str:
        name = self._names.setdefault(body, f"{kind}{len(self._names)}")
        if len(self._names) > len(self._rules):
            self._rules.append(name + body)
        return name


def quoted(text: str) -> str:
    """``text`` as a literal of the notation."""
    return json.dumps(text, ensure_ascii=False)


def either(*bodies: str) -> str:
    """One of ``bodies``."""
    return f"({' | '.join(bodies)})"
