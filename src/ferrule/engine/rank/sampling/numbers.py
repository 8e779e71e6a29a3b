"""Numbers in answers of JSON that do not end: a small model goes on with their digits until its context is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MOST_DIGITS = 40
"""In a row: those of any integer of 128 bits, and more than twice those that tell a double from its neighbours."""
_DIGITS = frozenset(b"0123456789")
_QUOTE, _BACKSLASH = b'"\\'
_MARKS = _DIGITS | {_QUOTE, _BACKSLASH}
"""Without which a token changes nothing, unless it ends something."""


class Place(NamedTuple):
    """End of a text in JSON: ``quoted``, in a string; ``escaped``, behind its backslash; ``digits``: of a number."""

    quoted: bool = False
    escaped: bool = False
    digits: int = 0

    def after(self, text: bytes) -> Place:
        quoted, escaped, digits = self
        for each in text:
            digits = digits + 1 if not quoted and each in _DIGITS else 0
            if escaped:
                escaped = False
            elif quoted and each == _BACKSLASH:
                escaped = True
            elif each == _QUOTE:
                quoted = not quoted
        return Place(quoted, escaped, digits)


class Texts:
    """Bytes of tokens. ``others``: bits of those that begin with no digit, as in a mask. 200,000 take 0.2 s."""

    def __init__(self, tokenizer: LLTokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        texts = [self.of(token) for token in range(vocabulary)]
        self._plain = bytes(map(_MARKS.isdisjoint, texts))
        self.others = np.packbits([not text[:1].isdigit() for text in texts], bitorder="little")

    def of(self, token: int) -> bytes:
        return self._tokenizer.decode_bytes([token])

    def after(self, place: Place, token: int) -> Place:
        """As `Place.after`."""
        if self._plain[token] and not (place.digits or place.escaped):
            return place
        return place.after(self.of(token))


class Numbers:
    """Place of an answer, after the tokens that it has."""

    def __init__(self, texts: Texts) -> None:
        self._texts, self._place = texts, Place()

    def took(self, token: int) -> None:
        self._place = self._texts.after(self._place, token)

    def bounded(self, mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """``mask`` of the next token, in bits: where a number has as many digits as it may, without more of them, if
        anything else may follow."""
        if self._place.digits < MOST_DIGITS:
            return mask
        found = mask & self._texts.others
        return found if found.any() else mask
