"""Harmony, the format of gpt-oss: messages with a header that names their channel and recipient.

By the format's public description (openai/harmony, docs/format.md): ``<|channel|>NAME to=RECIPIENT<|constrain|>json
<|message|>BODY<|end|>``; the recipient may also stand in the role, before the channel. openai-harmony itself would add
a compiled library for what are a few lines, and its parser wants token ids.
"""

from __future__ import annotations

import re

from ferrule.serve.answer.text import open_suffix
from ferrule.serve.tools.arguments import MalformedError, call, read_json
from ferrule.serve.tools.parts import CallPiece, Part, Reasoning, Text, join

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START, CHANNEL)
SPECIAL = (MESSAGE, CONSTRAIN, *ENDS)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z]+)")


class Harmony:
    """Reader of one answer; ``calls``: whether tools were offered; ``pieces``: give calls as they are written."""

    def __init__(self, *, calls: bool, pieces: bool = False) -> None:
        self._calls = calls
        self._pieces = pieces
        self._told: int | None = None
        """Characters of the call's arguments that have been given."""
        self._buffer = ""
        self._header: str | None = None
        """Header of the message that is being read; None between messages."""

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        while self._step(parts, final=False):
            pass
        return _merged(parts)

    def finish(self, *, ended: bool) -> list[Part]:
        parts: list[Part] = []
        if ended and self._header is not None:
            self._buffer += "<|end|>"  # the token that ended it is not part of the text
        while self._step(parts, final=True):
            pass
        # Of an answer that is cut off, a header or a call that has begun is dropped.
        if self._header is not None and self._target() is None:
            parts.append(self._part(self._buffer))
        elif ended and self._header is None:
            parts.append(Text(self._buffer))
        return _merged(parts)

    def _step(self, parts: list[Part], *, final: bool) -> bool:
        return self._read_header(parts, final) if self._header is None else self._read_body(parts)

    def _read_header(self, parts: list[Part], final: bool) -> bool:
        head = self._buffer.lstrip()
        begins = (CHANNEL, START, "<|end|>", "to=", MESSAGE)
        if head and not any(head.startswith(each) or each.startswith(head) for each in begins):
            # No header: what follows is said in the open.
            self._header = f"{CHANNEL}final"
            return True
        at = self._buffer.find(MESSAGE)
        if at < 0:
            return False
        self._header = self._buffer[:at]
        self._buffer = self._buffer[at + len(MESSAGE) :]
        return True

    def _read_body(self, parts: list[Part]) -> bool:
        found = [(at, each) for each in ENDS if (at := self._buffer.find(each)) >= 0]
        held = self._target() is not None
        if not found:
            if held and self._pieces:
                self._tell(parts, self._buffer[: len(self._buffer) - self._hold()])
            if not held:
                keep = len(self._buffer) - self._hold()
                parts.append(self._part(self._buffer[:keep]))
                self._buffer = self._buffer[keep:]
            return False
        at, end = min(found)
        body = self._buffer[:at]
        self._buffer = self._buffer[at if end in (START, CHANNEL) else at + len(end) :]
        if held and self._pieces:
            self._tell(parts, body)
        else:
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
        return max(open_suffix(self._buffer, each) for each in ENDS)

    def _target(self) -> str | None:
        """Tool that the message is for."""
        assert self._header is not None
        found = _RECIPIENT.search(self._header)
        if not self._calls or found is None or found[1] in ("user", "all", "assistant"):
            return None
        return found[1].removeprefix("functions.")

    def _call(self, body: str) -> Part:
        assert self._header is not None
        try:
            return call(self._target(), read_json(body.strip() or "{}"))
        except MalformedError:
            return Text(self._header + MESSAGE + body)

    def _part(self, body: str) -> Part:
        channel = _CHANNEL.search(self._header or "")
        return Reasoning(body) if channel is not None and channel[1] == "analysis" else Text(body)


def _merged(parts: list[Part]) -> list[Part]:
    made: list[Part] = []
    for part in parts:
        join(made, part)
    return made
