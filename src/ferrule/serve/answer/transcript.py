"""One sequence's answer as it grows: text, log-probabilities with their place in it, and why it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrule.engine import FinishReason, PromptToken, Token
from ferrule.serve.answer.text import NONE_SHOWN, Detokenizer, StopScanner, Vocabulary
from ferrule.serve.tools.parts import Part


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token with its log-probability (natural logarithm) and the likeliest alternatives, best first.

    ``offset``: where its text begins in the answer, in characters.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    offset: int


@dataclass(frozen=True)
class Piece:
    """The next piece of answer ``index``. ``tokens``: how many the engine has made for that answer so far.
    ``stop``: the stop string that ended it, if one did.

    Of a chat, ``parts`` are what the text says, ``called`` whether there have been tool calls so far, and ``reasoning``
    how many of the tokens were reasoning, with its marks. ``prompt``: in the first piece, what was asked of the
    prompt's tokens but the first. ``cached``: how many of these were computed for earlier requests. ``guessed`` of the
    tokens so far were guessed (speculation); ``wrong``: as many guesses were dropped."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...]
    tokens: int
    finish: FinishReason | None
    parts: tuple[Part, ...] = ()
    called: bool = False
    reasoning: int = 0
    stop: str | None = None
    prompt: tuple[PromptToken, ...] | None = None
    cached: int = 0
    guessed: int = 0
    wrong: int = 0


class Transcript:
    """Takes a sequence's tokens and gives the pieces that may be sent.

    A piece's log-probabilities are those of the tokens whose text has begun to be sent; tokens that lie behind the
    stop string, and the end token, are not reported.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stops: Sequence[str] = (),
        *,
        index: int = 0,
        context: Sequence[int] = (),
        shown: Mapping[str, str] = NONE_SHOWN,
    ) -> None:
        self._index = index
        self._text_of = vocabulary.text_of
        self._detokenizer = Detokenizer(vocabulary, context, shown=shown)
        self._scanner = StopScanner(stops)
        self._pending: list[TokenLogprob] = []
        self._decoded = 0
        self._sent = 0
        self._tokens = self._cached = self._guessed = self._wrong = 0

    def push(self, token: Token) -> Piece | None:
        """The piece that ``token`` completes, if it completes one. After a piece with ``finish`` nothing may follow."""
        self._tokens += 1
        self._guessed += token.guessed
        self._wrong += token.wrong
        if token.cached is not None:
            self._cached = token.cached
        text = ""
        if token.finish != "stop":
            self._note(token)
            text = self._detokenizer.push(token.id)
        if token.finish is not None:
            text += self._detokenizer.flush()
        self._decoded += len(text)
        scanned = self._scanner.push(text)
        if scanned.stopped is not None:
            return self._piece(scanned.text, "stop", stop=scanned.stopped)
        if token.finish is not None:
            return self._piece(scanned.text + self._scanner.flush(), token.finish)
        return self._piece(scanned.text, None) if scanned.text else None

    def _note(self, token: Token) -> None:
        if token.logprob is not None:
            top = tuple((self._text_of(other), logprob) for other, logprob in token.top)
            self._pending.append(TokenLogprob(self._text_of(token.id), token.logprob, top, self._decoded))

    def _piece(self, text: str, finish: FinishReason | None, *, stop: str | None = None) -> Piece:
        self._sent += len(text)
        everything = finish is not None and stop is None
        due = [entry for entry in self._pending if everything or entry.offset < self._sent]
        self._pending = self._pending[len(due) :]
        return Piece(
            self._index,
            text,
            tuple(due),
            self._tokens,
            finish,
            stop=stop,
            cached=self._cached,
            guessed=self._guessed,
            wrong=self._wrong,
        )
