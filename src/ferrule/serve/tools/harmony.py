"""Harmony, the format of gpt-oss: messages with a header that names their channel and recipient.

By the format's public description (openai/harmony, docs/format.md): ``<|channel|>NAME to=RECIPIENT<|constrain|>json
<|message|>BODY<|end|>``; the recipient may also stand in the role, before the channel. openai-harmony itself would add
a compiled library for what are a few lines, and its parser wants token ids.
"""

from __future__ import annotations

import re

from ferrule.serve.answer.text import open_suffix
from ferrule.serve.tools.arguments import MalformedError, call, read_json
from ferrule.serve.tools.parts import CallPiece, Part, Reasoning, Text, Tools, join

START, CHANNEL, MESSAGE, CONSTRAIN, END = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"
ENDS = (END, "<|call|>", "<|return|>", START, CHANNEL)
SPECIAL = (MESSAGE, CONSTRAIN, *ENDS)
TOKEN = "\ufdd0"
"""Character (of none) before a mark that is a token, and not spelt out: a model writes about its marks, too. Where the
first mark of an answer has none, its tokenizer does not tell them apart."""
BUILT_IN = ("python", "browser", "container")
"""Tools that its models were trained with, and call unasked."""
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z]+)")


class Harmony:
    """Reader of one answer; ``tools``: None where none were offered; ``pieces``: give calls as they are written."""

    def __init__(self, tools: Tools | None, *, pieces: bool = False) -> None:
        self._tools = tools
        self._pieces = pieces
        self._token: str | None = None
        """What marks begin with: `TOKEN`, nothing, or it is not known yet."""
        self._told: int | None = None
        """Characters of the call's arguments that have been given."""
        self._buffer = ""
        self._header: str | None = None
        """Header of the message that is being read; None between messages."""

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        if self._token is None:
            found = [at for each in SPECIAL if (at := self._buffer.find(each)) >= 0]
            if found:
                self._token = TOKEN if self._buffer[: min(found)].endswith(TOKEN) else ""
        while self._step(parts, final=False):
            pass
        return _merged(parts)

    def finish(self, *, ended: bool) -> list[Part]:
        parts: list[Part] = []
        if ended and self._header is not None:
            self._buffer += f"{self._token or ''}{END}"  # the token that ended it is not part of the text
        while self._step(parts, final=True):
            pass
        # Of an answer that is cut off, a header or a call that has begun is dropped.
        if self._header is not None and self._target() is None:
            parts.append(self._part(_plain(self._buffer)))
        elif ended and self._header is None:
            parts.append(Text(_plain(self._buffer)))
        return _merged(parts)

    def _step(self, parts: list[Part], *, final: bool) -> bool:
        return self._read_header(parts, final) if self._header is None else self._read_body(parts)

    def _read_header(self, parts: list[Part], final: bool) -> bool:
        head = self._buffer.lstrip()
        marks = [mark + each for mark in self._marks() for each in (CHANNEL, START, END, MESSAGE)]
        begins = ("to=", *marks)
        if head and not any(head.startswith(each) or each.startswith(head) for each in begins):
            # No header: what follows is said in the open.
            self._header = f"{CHANNEL}final"
            return True
        head, found, rest = self._buffer.partition((self._token or "") + MESSAGE)
        if not found:
            return False
        self._header, self._buffer = _plain(head), rest
        return True

    def _read_body(self, parts: list[Part]) -> bool:
        ends = [(self._token or "") + each for each in ENDS]
        found = [(at, each) for each in ends if (at := self._buffer.find(each)) >= 0]
        held = self._target() is not None
        if not found:
            if held and self._pieces:
                self._tell(parts, _plain(self._buffer[: len(self._buffer) - self._hold()]))
            if not held:
                keep = len(self._buffer) - self._hold()
                parts.append(self._part(_plain(self._buffer[:keep])))
                self._buffer = self._buffer[keep:]
            return False
        at, end = min(found)
        body = _plain(self._buffer[:at])
        self._buffer = self._buffer[at if end.endswith((START, CHANNEL)) else at + len(end) :]
        if held and self._pieces:
            self._tell(parts, body)
        elif not self._built_in():
            parts.append(self._call(body) if held else self._part(body))
        self._header = self._told = None
        return bool(self._buffer)

    def _tell(self, parts: list[Part], body: str) -> None:
        """Give the pieces of the call whose arguments are ``body`` so far."""
        if self._told is None:
            self._told = 0
            parts.append(CallPiece(self._target() or "", ""))
        if len(body) > self._told:
            parts.append(CallPiece("", body[self._told :]))
            self._told = len(body)

    def _hold(self) -> int:
        """Characters at the end of the buffer that may begin a mark."""
        return max(open_suffix(self._buffer, mark + each) for mark in self._marks() for each in ENDS)

    def _marks(self) -> tuple[str, ...]:
        return ("", TOKEN) if self._token is None else (self._token,)

    def _target(self) -> str | None:
        """Tool that the message is for."""
        assert self._header is not None
        found = _RECIPIENT.search(self._header)
        if self._tools is None or found is None or found[1] in ("user", "all", "assistant"):
            return None
        return found[1].removeprefix("functions.")

    def _call(self, body: str) -> Part:
        assert self._header is not None
        try:
            return call(self._target(), read_json(body.strip() or "{}"))
        except MalformedError:
            return Text(self._header + MESSAGE + body)

    def _built_in(self) -> bool:
        """Whether the message is for a tool that nobody here has."""
        target = self._target()
        if target is None or self._tools is None:
            return False
        return target.partition(".")[0] in BUILT_IN and target not in self._tools.parameters

    def _part(self, body: str) -> Part:
        channel = _CHANNEL.search(self._header or "")
        return Reasoning(body) if channel is not None and channel[1] == "analysis" else Text(body)


def _plain(text: str) -> str:
    return text.replace(TOKEN, "")


def _merged(parts: list[Part]) -> list[Part]:
    made: list[Part] = []
    for part in parts:
        join(made, part)
    return made
