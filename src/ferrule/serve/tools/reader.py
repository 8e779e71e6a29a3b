"""From the text of an answer, as it comes, to its parts: reasoning, text and tool calls. Pure.

Text is held back only while it may be the beginning of a marker, and white space while calls may follow. A call comes
out when it is complete: what a model writes wrongly is text, and no client has begun to act on it. Only under a grammar
do its pieces come before. Only of an answer that is cut off is a call dropped that had begun. However an answer is cut
into pieces, its parts are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

from ferrule.serve.answer.text import open_suffix
from ferrule.serve.tools.parts import Call, Format, Markers, Part, Reasoning, Text, Tools, join
from ferrule.serve.tools.pieces import Pieces

LOOK = 256
"""Characters of a call by which it is seen whether it is one; of a longer one only the end is looked for."""
ENDS = frozenset(">]})")
"""Characters that calls end with, in every format."""


class Reads(Protocol):
    """Reader of one answer."""

    def push(self, text: str) -> list[Part]: ...

    def finish(self, *, ended: bool) -> list[Part]:
        """What is left. ``ended``: the model chose to end, rather than being cut off."""
        ...


class Plain:
    """All of an answer is text."""

    def push(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def finish(self, *, ended: bool) -> list[Part]:
        return []


class _Mode(Enum):
    START = auto()
    THINKING = auto()
    TEXT = auto()
    BLOCK = auto()


class Reader:
    """Reads calls of ``form`` (None: there are none) and reasoning between the pairs of ``think``.

    ``thinking``: the prompt has opened the first pair of ``think`` already. ``pieces``: of calls as they are written.
    """

    def __init__(
        self,
        form: Format | None,
        think: Sequence[tuple[str, str]] = (),
        *,
        thinking: tuple[str, str] | None = None,
        tools: Tools | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        self._pieces = pieces
        self._form, self._think, self._tools = form, tuple(think), tools or Tools()
        self._markers = form.markers if form is not None else Markers()
        self._close = "" if thinking is None else thinking[1]
        self._mode = _Mode.START if thinking is None else _Mode.THINKING
        self._buffer = ""
        self._after_call = False
        self._at_start = True
        self._out = Output()
        self._final = self._ended = False
        self._steps: dict[_Mode, Callable[[], bool]] = {
            _Mode.START: self._start,
            _Mode.THINKING: self._thinking,
            _Mode.TEXT: self._text,
            _Mode.BLOCK: self._block,
        }

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        if self._mode is _Mode.BLOCK:
            self._tell_pieces()
        if self._mode is not _Mode.BLOCK or len(self._buffer) < LOOK or ENDS & set(text):
            self._run()
        return self._out.take()

    def finish(self, *, ended: bool) -> list[Part]:
        self._final, self._ended = True, ended
        self._run()
        self._out.close()
        return self._out.take()

    def _run(self) -> None:
        while self._buffer and self._steps[self._mode]():
            pass

    def _start(self) -> bool:
        head = self._buffer.lstrip()
        for opening, closing in self._think:
            if head.startswith(opening):
                self._buffer, self._close, self._mode = head[len(opening) :], closing, _Mode.THINKING
                return True
        if not self._final and any(opening.startswith(head) for opening, _ in self._think):
            return False
        self._mode = _Mode.TEXT
        return True

    def _thinking(self) -> bool:
        at = self._buffer.find(self._close)
        if at >= 0:
            self._out.reason(self._buffer[:at])
            self._out.end_reasoning()
            self._buffer, self._mode = self._buffer[at + len(self._close) :], _Mode.TEXT
            return True
        called = [at for each in self._markers.opens if (at := self._buffer.find(each)) >= 0]
        if called:  # to be decided by whether the reasoning ends behind it
            self._out.reason(self._buffer[: min(called)])
            self._buffer = self._buffer[min(called) :]
            if not self._final:
                return False
            if self._ended:
                self._out.end_reasoning()
                self._mode = _Mode.TEXT
                return True
            self._out.reason(self._buffer)
            self._buffer = ""
            return False
        self._out.reason(self._release((self._close, *self._markers.opens)))
        return False

    def _text(self) -> bool:
        opens = self._markers.opens
        if self._at_start or self._after_call:
            head = self._buffer.lstrip()
            if not head and not self._final:
                return False
            if any(head.startswith(each) for each in self._markers.starts):
                return self._enter(len(self._buffer) - len(head))
        found = [at for each in opens if (at := self._buffer.find(each)) >= 0]
        if found:
            return self._enter(min(found))
        self._say(self._release(opens))
        return False

    def _enter(self, at: int) -> bool:
        self._say(self._buffer[:at])
        self._buffer, self._mode = self._buffer[at:], _Mode.BLOCK
        return True

    def _block(self) -> bool:
        assert self._form is not None
        self._tell_pieces()
        told = 0 if self._pieces is None else self._pieces.calls
        block = self._form.read(self._buffer, self._tools, after_call=self._after_call, ended=self._ended)
        if block is None:
            if not self._final:
                return False
            marked = [each for each in self._markers.opens if self._buffer.startswith(each)]
            if told or (marked and not self._ended):
                self._buffer = ""
                return False
            length = max(map(len, marked), default=1)
            self._say(self._buffer[:length])
            self._buffer = self._buffer[length:]
        else:
            if block.calls is None:
                self._say(self._buffer[: block.end])
            else:
                self._after_call = True
            for each in (block.calls or ())[told:]:
                self._out.call(each)
            self._buffer = self._buffer[block.end :]
            if self._pieces is not None:
                self._pieces.reset()
        self._mode = _Mode.TEXT
        return True

    def _tell_pieces(self) -> None:
        for piece in () if self._pieces is None else self._pieces.read(self._buffer):
            self._out.call(piece)

    def _say(self, text: str) -> None:
        if text.strip():
            self._at_start = self._after_call = False
        self._out.say(text)

    def _release(self, markers: Sequence[str]) -> str:
        """What of the buffer no marker can begin in; it is taken out."""
        hold = 0 if self._final else max((open_suffix(self._buffer, each) for each in markers), default=0)
        keep = len(self._buffer) - hold
        released, self._buffer = self._buffer[:keep], self._buffer[keep:]
        return released


class Output:
    """Parts in order. White space around reasoning and calls is dropped; within text it is kept."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._space = ""
        self._said = self._thought = self._reasoned = self._called = False

    def take(self) -> list[Part]:
        taken, self._parts = self._parts, []
        return taken

    def reason(self, text: str) -> None:
        self._thought = True
        body = self._held(text)
        if not self._reasoned:
            body = body.lstrip()
        if body:
            self._reasoned = True
            join(self._parts, Reasoning(body))

    def end_reasoning(self) -> None:
        self._space, self._thought = "", True

    def say(self, text: str) -> None:
        body = self._held(text)
        if not body:
            return
        if not self._said and (self._thought or self._called):
            body = body.lstrip()
        self._said = True
        join(self._parts, Text(body))

    def call(self, each: Call) -> None:
        if self._said and "\n" not in self._space:
            join(self._parts, Text(self._space))
            self._space = ""
        elif not self._said:
            self._space = ""
        self._called = True
        self._parts.append(each)

    def close(self) -> None:
        if self._space and not self._called and (self._said or not self._thought):
            join(self._parts, Text(self._space))

    def _held(self, text: str) -> str:
        """``text`` behind the white space that was held back; that at its end is held back now."""
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        return body
