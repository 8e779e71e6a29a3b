"""From tokens to text that can be sent: detokenise one token at a time, and hold back what may become a stop string.

Pure: no I/O and no clock. A tokenizer is only asked to decode. The tokenizers library's DecodeStream is not used: it
holds text back as long as that ends in broken bytes, however long, and cannot give what is left at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ferrule.engine import Tokenizer

REPLACEMENT = "\ufffd"
"""Character that decoders write for bytes that are not (yet) a UTF-8 character."""

HOLD_TOKENS = 64
"""An incomplete character is at most four tokens long; a run this long is no character but broken bytes."""

CONTEXT_TOKENS = 6
"""Prompt tokens with which the first generated token is decoded, so that it keeps its leading space."""

NONE_SHOWN: Final[Mapping[str, str]] = MappingProxyType({})
"""Of `Detokenizer`: no special token has a text."""


class Vocabulary:
    """Vocabulary: what is known about single tokens of one tokenizer. Remembers its answers, so keep one per model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._names: dict[int, str] = {}
        self._anchor = list(tokenizer.encode("a", add_special_tokens=False))
        self._anchor_text = tokenizer.decode(self._anchor)
        self._special: dict[int, bool] = {}
        self._texts: dict[int, str] = {}

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens) if tokens else ""

    def is_special(self, token: int) -> bool:
        """Whether ``token`` has no text of its own, such as the end token."""
        answer = self._special.get(token)
        if answer is None:
            shown = self._names[token] = self.tokenizer.decode([token], skip_special_tokens=False)
            answer = self._special[token] = bool(shown) and not self.tokenizer.decode([token])
        return answer

    def name_of(self, token: int) -> str:
        """Name of a special token."""
        return self._names[token].strip()

    def text_of(self, token: int) -> str:
        """``token`` as log-probabilities name it: with its leading space, and special tokens by their name."""
        text = self._texts.get(token)
        if text is None:
            whole = self.tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
            if whole.startswith(self._anchor_text):
                text = whole[len(self._anchor_text) :]
            else:
                text = self.tokenizer.decode([token], skip_special_tokens=False)
            self._texts[token] = text
        return text


class Detokenizer:
    """Turns a sequence's tokens into text as they come, such that the pieces add up to the decoded whole.

    A token alone has no text: it may be part of a character, and sentencepiece drops the leading space of whatever
    comes first. So a window of the last tokens is decoded with and without the new ones, and the difference is the
    new text; while the window ends in an incomplete character nothing is released. ``context``: tokens that came
    before, which are not repeated in the text. ``shown``: how special tokens are written, by their name; others have no
    text.
    """

    def __init__(
        self, vocabulary: Vocabulary, context: Sequence[int] = (), *, shown: Mapping[str, str] = NONE_SHOWN
    ) -> None:
        self._vocabulary = vocabulary
        self._shown = shown
        self._decode = vocabulary.decode
        self._window = [token for token in context[-CONTEXT_TOKENS:] if not vocabulary.is_special(token)]
        self._known = len(self._window)
        self._text = self._decode(self._window).rstrip(REPLACEMENT)

    def push(self, token: int) -> str:
        """The text that is certain after ``token``; often empty."""
        if self._vocabulary.is_special(token):
            shown = self._shown.get(self._vocabulary.name_of(token))
            return "" if shown is None else self.flush() + shown
        self._window.append(token)
        text = self._decode(self._window)
        held = len(self._window) - self._known
        if text.endswith(REPLACEMENT) or len(text) <= len(self._text):
            return self._release_broken(text) if held > HOLD_TOKENS else ""
        return self._release(text, keep=0)

    def flush(self) -> str:
        """Text that is left when the sequence has ended, an incomplete character included."""
        return self._release(self._decode(self._window), keep=0)

    def _release(self, text: str, *, keep: int) -> str:
        """The part of ``text`` not yet released. The last ``keep`` tokens stay pending and are not part of it."""
        new = text[len(self._text) :]
        end = len(self._window) - keep
        context, pending = self._window[self._known : end], self._window[end:]
        self._text = self._decode(context)
        self._known = len(context)
        self._window = context + pending
        return new

    def _release_broken(self, text: str) -> str:
        """Let go of a long run of broken bytes, except for tokens at its end that may still become a character."""
        for keep in (3, 2, 1):
            head = self._decode(self._window[:-keep])
            if head + self._decode(self._window[-keep:]) == text:
                return self._release(head, keep=keep)
        return ""


@dataclass(frozen=True)
class Scanned:
    """``text`` may be sent; ``stopped`` is the stop string that came right after it, if any."""

    text: str
    stopped: str | None = None


class StopScanner:
    """Cuts a text at the stop string that is complete first, however the text is cut into chunks.

    Of several that are complete at the same character the longest counts. What may be the beginning of a stop
    string is held back until it is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> Scanned:
        if not self._stops:
            return Scanned(text)
        buffer = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if found:
            self._held = ""
            end, at = min(found)
            return Scanned(buffer[:at], stopped=buffer[at:end])
        hold = max(open_suffix(buffer, stop) for stop in self._stops)
        self._held = buffer[len(buffer) - hold :]
        return Scanned(buffer[: len(buffer) - hold])

    def flush(self) -> str:
        """Text that was held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held


def open_suffix(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` with which ``stop`` begins."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
