"""Pace: how long steps take, as measured, and how many tokens of prompts they may therefore have beside answers.

A step's time is that of its answers alone, a line over their number, and of each token of a prompt so much more. Both
follow what was measured last. What a token costs is known near the pieces that were computed: up to the ridge of the
roofline (Williams et al. 2009) it costs nothing, and beyond it all at once, so pieces grow by steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrule.engine.inter_token import AUTO, InterTokenLimit, parse_inter_token_limit

FLOOR = 8
"""Tokens of prompts in every step, whatever they cost: prompts must come to an end."""
RIDGE = 10
"""Of processors, where it is not measured."""
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
        """Seconds by which one more token of a prompt makes a step longer."""
        self._tried = float(max(self.ridge, RIDGE) / _GROWTH)
        self._mixed = 0

    def seconds_beside(self, answers: int, prompts: int) -> float | None:
        """Seconds of a step of ``answers`` that may be spent on ``prompts``; None: any."""
        alone = self.alone.at(answers)
        longest = self.limit.step_seconds(alone, answers, prompts)
        return None if longest is None else max(0.0, _MARGIN * longest - alone)

    def beside(self, answers: int, prompts: int) -> int | None:
        """Tokens that a step of ``answers`` may have of ``prompts``, which wait; None: as many as there is room for. 0
        where it is to be measured what the answers take alone."""
        left = self.seconds_beside(answers, prompts)
        if left is None:
            return None
        if self._mixed >= _ALONE_EVERY:
            return 0
        count = min(left / self.token, _GROWTH * self._tried) if self.token > 0 else 0.0
        return max(FLOOR, int(count))

    def took(self, seconds: float, answers: int, tokens: int) -> None:
        """A step of ``answers`` and so many ``tokens`` of prompts took ``seconds``."""
        if not tokens:
            self.alone.measured(answers, seconds)
            self._mixed = 0
        elif answers:
            self._mixed += 1
            self._tried = max(tokens, _FORGOTTEN * self._tried)
            alone = self.alone.at(answers)
            seconds = min(seconds, _OUTLIER * (alone + self.token * tokens))
            self._learn(max(0.0, seconds - alone) / tokens)
        elif tokens >= _NO_ANSWERS and seconds < self.token * tokens:  # the weights are read in that time, too
            self._learn(seconds / tokens)

    def _learn(self, cost: float) -> None:
        self.token += (_NEWEST_MORE if cost > self.token else _NEWEST_LESS) * (cost - self.token)
