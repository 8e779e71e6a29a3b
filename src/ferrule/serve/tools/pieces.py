"""Arguments of calls as they are written, of formats that carry JSON. Pure.

Only under a grammar: there a call that has begun becomes one, so nothing that is sent must be taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from ferrule.serve.tools.parts import CallPiece

_NAMED = r'"name"\s*:\s*(?P<quoted>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
_BAR, _SEP = "｜", "<｜tool▁sep｜>"
HEADS: Final[Mapping[str, re.Pattern[str]]] = {
    "hermes": re.compile(r"<tool_call>\s*\{\s*" + _NAMED),
    "mistral": re.compile(
        r"(?:^\[TOOL_CALLS\]\s*\[?|\}\s*,)\s*\{\s*" + _NAMED + r"|^\[TOOL_CALLS\](?P<plain>[^\[{]+)\[ARGS\]"
    ),
    "llama-json": re.compile(r"(?:<\|python_tag\|>)?\s*\{\s*" + _NAMED),
    "deepseek": re.compile(
        rf"(?:<{_BAR}tool▁calls▁begin{_BAR}>\s*)?<{_BAR}tool▁call▁begin{_BAR}>"
        rf"(?:function{_SEP}(?P<fenced>[^\n]+)\n```json\n|(?P<plain>(?!function<)[^<]+){_SEP})"
    ),
    "kimi": re.compile(
        r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>"
        r"(?P<id>functions\.(?P<plain>[^:]+):\d+)<\|tool_call_argument_begin\|>"
    ),
}
"""What stands before the arguments of a call, by the family's format; a list has several."""
_MARK = re.compile(r'["\\{}\[\]]')


class Pieces:
    """Pieces of the calls that a text says, which begins with a call and grows. ``calls``: how many have begun."""

    def __init__(self, head: re.Pattern[str]) -> None:
        self._head = head
        self.reset()

    def reset(self) -> None:
        """Another text follows."""
        self.calls = 0
        self._at = 0
        self._scan: _Scan | None = None

    def read(self, text: str) -> list[CallPiece]:
        """What ``text`` says more than when it was read last."""
        made = []
        while self._at < len(text):
            if self._scan is None:
                found = self._head.match(text, self._at)
                if found is None or found.end() == len(text):
                    break
                self._at, self._scan = found.end(), _Scan()
                self.calls += 1
                told = found.groupdict()
                name = json.loads(told["quoted"]) if told.get("quoted") else told.get("fenced") or told["plain"]
                made.append(CallPiece(name.strip(), "", told.get("id")))
            end = self._scan.end(text, self._at)
            made.append(CallPiece("", text[self._at : end if end is not None else len(text)]))
            if end is None:
                self._at = len(text)
            else:
                self._at, self._scan = end, None
        return made


class _Scan:
    """Search for the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = False

    def end(self, text: str, at: int) -> int | None:
        """Where the object ends that goes on at ``at``; None where it does not."""
        if self._escaped and at < len(text):
            self._escaped, at = False, at + 1
        while (mark := _MARK.search(text, at)) is not None:
            at = mark.end()
            if mark[0] == "\\":
                if self._quoted:
                    self._escaped = at == len(text)
                    at += 1
            elif mark[0] == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark[0] in "{[" else -1
                if self._depth == 0:
                    return at
        return None
