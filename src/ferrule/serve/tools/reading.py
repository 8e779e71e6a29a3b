"""Reading of one chat answer: pieces of text become pieces with parts. Pure, but for the ids that calls get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ferrule.serve.answer.transcript import Piece, TokenLogprob
from ferrule.serve.tools.families import Dialect
from ferrule.serve.tools.parts import Call, CallPiece, Part, Reasoning, Tools


@dataclass(frozen=True)
class ChatReading:
    """How the answer to a prompt that ends with ``prompt_end`` is read. ``tools``: None where no calls are wanted.
    ``parallel``: whether there may be more than one. ``own``: it follows a grammar of the dialect's
    family. ``pieces``: calls come as they are written (`CallPiece`)."""

    dialect: Dialect
    prompt_end: str = ""
    tools: Tools | None = None
    parallel: bool = True
    own: bool = False
    pieces: bool = False


class Reading:
    """Reads one answer. Log-probabilities go with the part that their tokens are in, or the next that is sent."""

    def __init__(self, chat: ChatReading) -> None:
        self._reader = chat.dialect.reader(chat.prompt_end, chat.tools, own=chat.own, pieces=chat.pieces)
        self._dialect, self._parallel = chat.dialect, chat.parallel
        self._calls = 0
        self._logprobs: list[TokenLogprob] = []
        self._seen = self._reasoned = 0
        self._reasons: bool | None = None

    def push(self, piece: Piece) -> Piece | None:
        """``piece`` with its parts; None while there is nothing to be sent."""
        parts = self._reader.push(piece.text)
        if piece.finish is not None:
            parts += self._reader.finish(ended=piece.finish == "stop")
        self._count(piece.tokens, parts)
        parts = [self._named(part) if isinstance(part, Call) else part for part in parts]
        self._logprobs.extend(piece.logprobs)
        first = next(
            (at for at, part in enumerate(parts) if isinstance(part, Call) and not isinstance(part, CallPiece)), None
        )
        if first is not None and not self._parallel:
            return self._piece(piece, parts[: first + 1], ended=True)
        return self._piece(piece, parts) if parts or piece.finish is not None else None

    def _count(self, tokens: int, parts: Sequence[Part]) -> None:
        """Count the tokens since the last piece for what they say. Those of marks, which say nothing, go with what was
        before them, at the start with what comes."""
        if parts:
            self._reasons = isinstance(parts[0], Reasoning)
        if self._reasons is not None:
            self._reasoned += (tokens - self._seen) * self._reasons
            self._seen = tokens
        if parts:
            self._reasons = isinstance(parts[-1], Reasoning)

    def _named(self, call: Call) -> Call:
        if isinstance(call, CallPiece) and not call.name:
            return replace(call, index=self._calls - 1)
        self._calls += 1
        return replace(call, id=call.id or self._dialect.new_id(), index=self._calls - 1)

    def _piece(self, piece: Piece, parts: list[Part], *, ended: bool = False) -> Piece:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return replace(
            piece,
            parts=tuple(parts),
            logprobs=logprobs,
            called=self._calls > 0,
            reasoning=self._reasoned,
            finish="stop" if ended else piece.finish,
        )
