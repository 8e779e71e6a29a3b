"""Guesses of what follows a sequence: n-grams of itself (prompt lookup decoding, Saxena 2023), and how many of them are
worth their time, by how often they come true. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SHORTEST, LONGEST = 2, 8
"""Tokens of the end of a sequence that are looked for before it: at least, and at most."""
FIRST_WAIT, LONGEST_WAIT = 16, 512
"""Tokens for which a sequence whose guesses did not pay has none: at first, and after many attempts."""
TRIED = 4
"""Steps with guesses after which these may be taken not to pay."""
_PRIOR = 2.0, 1.0
"""Guesses that are assumed to have come true and not, of a sequence that had none."""
_NEWEST = 0.2
"""Weight of the newest step in how often guesses come true."""


class Lookup:
    """The tokens of one sequence, in an array that grows with it, behind those of a text that it may repeat."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        self._tokens: NDArray[np.int32] = np.array(text, np.int32)
        self._length = self._text = len(text)

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """What may follow ``tokens``, at most so many: what did after the longest of its ends, the last time. They only
        grow from one call to the next."""
        self._take(tokens)
        known, length = self._tokens[: self._length], self._length
        if length <= SHORTEST or most < 1:
            return ()
        last = known[-1]
        ends = np.flatnonzero(known[: length - 1] == last)  # places of the last token of earlier n-grams
        found = -1
        for back in range(1, LONGEST):
            ends = ends[ends >= back]
            ends = ends[known[ends - back] == known[length - 1 - back]] if length > back else ends[:0]
            if not len(ends):
                break
            if back + 1 >= SHORTEST:
                found = int(ends[-1])
        if found < 0:
            return ()
        follows = known[found + 1 :][:most].tolist()
        while len(follows) < most:  # it has begun to repeat itself: so it goes on
            follows += follows[: most - len(follows)]
        return tuple(follows)

    def _take(self, tokens: Sequence[int]) -> None:
        count = self._text + len(tokens)
        if count > len(self._tokens):
            grown = np.empty(max(2 * len(self._tokens), count + 256), np.int32)
            grown[: self._length] = self._tokens[: self._length]
            self._tokens = grown
        self._tokens[self._length : count] = tokens[self._length - self._text :]
        self._length = count


def lookup_of(prompt: Sequence[int], predicted: Sequence[int]) -> Lookup:
    """For an answer to ``prompt`` that may have the text ``predicted``: from its first token on."""
    return Lookup([*prompt[-LONGEST:], *predicted] if predicted else ())


@dataclass
class Guesses:
    """Guesses of one sequence. ``true`` and ``false``: how many came true and did not, of which older ones count less;
    at first, what is assumed. ``steps``: that had some, since the last pause; ``resumes``: the number of its tokens at
    which that ends. ``missed``: how often in a row nothing was found."""

    true: float = _PRIOR[0]
    false: float = _PRIOR[1]
    steps: int = 0
    resumes: int = 0
    wait: int = FIRST_WAIT
    missed: int = 0
    lookup: Lookup = field(default_factory=Lookup)

    @property
    def chance(self) -> float:
        """That the next one comes true."""
        return self.true / (self.true + self.false)

    def worth(self, price: float, most: int) -> int:
        """With how many, up to ``most``, an answer has the most tokens per second: one more is worth its time if the
        chance that it comes true, and all before it, is greater than what the time it takes makes of tokens without it.
        ``price``: as of `StepCost`."""
        count, made, chance = 0, 1.0, self.chance
        while count < most and chance * (1 + count * price) > price * made:
            count, made, chance = count + 1, made + chance, chance * self.chance
        return count

    def learn(self, guessed: int, true: int) -> None:
        """The first ``true`` ones of those ``guessed`` were."""
        self.steps += 1
        self.true = self.true * (1 - _NEWEST) + true
        self.false = self.false * (1 - _NEWEST) + (true < guessed)

    def stop(self, tokens: int) -> None:
        """They do not pay: none for some time, and then as at first. It has so many ``tokens``."""
        paid = tokens - self.resumes >= self.wait
        self.wait = FIRST_WAIT if paid else min(LONGEST_WAIT, 2 * self.wait)
        self.steps, self.resumes, self.true, self.false = 0, tokens + self.wait, *_PRIOR
