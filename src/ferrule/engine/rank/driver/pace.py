"""Pace: how long steps take, as measured, and how many tokens of prompts they may therefore have beside answers.

A step's time is that of its answers alone, a line over their number, and of each token of a prompt so much more, and
more for each token before it, which it attends to. All follow what was measured last. What a token costs is known near
the pieces that were computed: up to the ridge of the roofline (Williams et al. 2009) it costs nothing, and beyond it
all at once, so pieces grow by steps.

Where a single token takes longer than what is left of a step, steps go without until they have saved the time of one.
Whatever the limit leaves, `_LEAST` of a step is for prompts; rounded down to whole tokens that is at least half of it,
a twentieth. So one whose tokens take s seconds has ended after 21 s of such steps, no matter how long it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ferrule.engine.inter_token import AUTO, InterTokenLimit, parse_inter_token_limit

RIDGE = 10
"""Of processors, where it is not measured. So many tokens may be tried at once, where their cost allows it."""
_LEAST = 0.1
"""Of the time of answers alone prompts have so much, whatever the limit."""
_MARGIN = 0.85
"""Of the limit is aimed at: single steps take longer than others."""
_GROWTH = 1.25
_FORGOTTEN = 0.98
"""What is left of a piece's length, as one that was tried, a step later."""
_ALONE_EVERY = 32
"""After so many steps with prompts one goes without, or nobody would know what those of answers alone take."""
_NEWEST_STEP, _NEWEST_LESS, _NEWEST_MORE = 0.1, 0.3, 0.6
"""Weight of the newest measurement: of a step without prompts, and of a token's cost where it is less or more than was
expected. More counts at once, as behind the ridge it will be still more."""
_OUTLIER = 2.0
"""A measurement counts as at most so many times what was expected."""
_NO_ANSWERS = 64
"""Tokens of a step without answers, from which on it tells what a token of a prompt costs."""
_ANY = 1 << 30
"""Tokens that cost nothing, as far as is known."""
_NEAR = 1024
"""Tokens before one of a prompt, from which on a cost that was not expected is put down to them rather than to it."""


@dataclass
class Line:
    """Regression line of measurements, of which the newest count most. Until there is one, ``y`` everywhere."""

    y: float
    x: float = 1.0
    known: bool = False
    _variance: float = 0.0
    _covariance: float = 0.0

    def at(self, x: float) -> float:
        slope = self._covariance / (self._variance + 0.1) if self._covariance > 0 else 0.0
        return max(self.y + slope * (x - self.x), self.y / 4)

    def measured(self, x: float, y: float) -> None:
        if not self.known:
            self.x, self.y, self.known = x, y, True
            return
        y = min(y, _OUTLIER * self.at(x))
        dx, dy, new = x - self.x, y - self.y, _NEWEST_STEP
        self.x, self.y = self.x + new * dx, self.y + new * dy
        self._variance = (1 - new) * (self._variance + new * dx * dx)
        self._covariance = (1 - new) * (self._covariance + new * dx * dy)


@dataclass
class Pace:
    """``step_seconds``: of one token of one sequence; ``ridge``: tokens of a step up to which it takes no longer, 0
    where that is not known. Both count until steps were measured."""

    limit: InterTokenLimit = field(default_factory=lambda: parse_inter_token_limit(AUTO))
    step_seconds: float = 0.0
    ridge: int = 0

    def __post_init__(self) -> None:
        self.alone = Line(self.step_seconds)
        self.token = self.step_seconds / (self.ridge or RIDGE)
        """Seconds by which one more token of a prompt makes a step longer,"""
        self.attended = 0.0
        """and one more for each of those before it."""
        self.saved = 0.0
        """Seconds that steps have not spent on prompts since these had a token."""
        self._tried = float(max(self.ridge, RIDGE) / _GROWTH)
        self._mixed = 0

    def seconds_beside(self, answers: int, prompts: int) -> float | None:
        """Seconds of a step of ``answers`` that may be spent on ``prompts``; None: any."""
        alone = self.alone.at(answers)
        longest = self.limit.step_seconds(alone, answers, prompts)
        return None if longest is None else max(0.0, _MARGIN * longest - alone)

    def allow(self, answers: int, prompts: int, least: int = 0) -> Allowance | None:
        """What a step of ``answers`` may have of ``prompts``, which wait; None: as much as there is room for. None of
        them where it is to be measured what the answers take alone, but ``least`` tokens in any case."""
        left = self.seconds_beside(answers, prompts)
        if left is None:
            return None
        if self._mixed >= _ALONE_EVERY:
            return Allowance(self, 0.0, 0, least)
        left = max(left, _LEAST * self.alone.at(answers))
        self.saved += left
        return Allowance(self, left, max(RIDGE, int(_GROWTH * self._tried)), least)

    def price(self, tokens: float, seen: int) -> float:
        """Seconds of ``tokens`` of a prompt behind ``seen`` of them."""
        return tokens * (self.token + self.attended * (seen + tokens / 2))

    def within(self, seconds: float, seen: int) -> int:
        """The most tokens of a prompt behind ``seen`` that take no longer than ``seconds``."""
        first = self.token + self.attended * seen
        root = first + math.sqrt(first * first + 2 * self.attended * seconds)
        return int(2 * seconds / root) if root > 0 else _ANY

    def took(self, seconds: float, answers: int, tokens: int, attended: float = 0.0) -> None:
        """A step of ``answers`` and so many ``tokens`` of prompts, which attend to so many, took ``seconds``."""
        if not tokens:
            self.alone.measured(answers, seconds)
            self._mixed = 0
            return
        expected = self.token * tokens + self.attended * attended
        if answers:
            self._mixed += 1
            self._tried = max(tokens, _FORGOTTEN * self._tried)
            alone = self.alone.at(answers)
            seconds = min(seconds, _OUTLIER * (alone + expected))
            self._learn(max(0.0, seconds - alone), expected, tokens, attended)
        elif tokens >= _NO_ANSWERS and seconds < expected:  # the weights are read in that time, too
            self._learn(seconds, expected, tokens, attended)

    def _learn(self, seconds: float, expected: float, tokens: int, attended: float) -> None:
        """By normalised least mean squares (Widrow and Hoff, 1960), of the cost of a token and that of `_NEAR`."""
        before = attended / tokens / _NEAR
        error = (seconds - expected) / tokens / (1 + before * before)
        error *= _NEWEST_MORE if error > 0 else _NEWEST_LESS
        self.token = max(0.0, self.token + error)
        self.attended = max(0.0, self.attended + error * before / _NEAR)


@dataclass
class Allowance:
    """What one step may have of prompts: ``seconds`` of its time, ``tokens`` as far as that goes, but ``least`` of them
    whatever they take. All as they are left."""

    pace: Pace
    seconds: float
    tokens: int
    least: int = 0
    _spent: bool = False

    def of(self, seen: int) -> int:
        """Tokens of a prompt behind ``seen`` of it: 0 where it has to wait for a later step."""
        count = min(self.tokens, self.pace.within(self.seconds, seen))
        if not count and self.tokens and not self._spent:
            price = self.pace.price(1, seen)
            self.pace.saved = min(self.pace.saved, price + self.seconds)
            count = int(self.pace.saved >= price)
        return max(self.least, count)

    def spend(self, tokens: int, seen: int) -> None:
        """The step computes ``tokens`` of a prompt behind ``seen``."""
        price = self.pace.price(tokens, seen)
        self.pace.saved = max(0.0, self.pace.saved - price) if price > self.seconds else 0.0
        self.seconds = max(0.0, self.seconds - price)
        self.tokens, self.least = max(0, self.tokens - tokens), max(0, self.least - tokens)
        self._spent = True
