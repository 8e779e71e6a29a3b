"""Speculative decoding: tokens that are guessed, computed in one step with the last one, and kept where it chose them
(Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023).

How many are worth their time is measured: of each sequence how often they come true, and of a step what a further token
costs. Pure bookkeeping of the driver: no clocks, no tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.driver.guesses import TRIED
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.pace import Pace
from ferrule.engine.rank.sequence import Sequence

SELDOM = 8
"""After so many steps for which nothing was found, it is looked once in so many tokens where looking costs time."""
_KEPT = 0.97
"""By which what was measured of a step counts less with each one after it."""
_ALIKE = 4.0
"""Steps whose numbers of tokens have a smaller sum of squares differ too little."""
_OUTLIER = 3.0
"""Times the mean: a step that took longer was held up by something else."""
_ASSUMED, _AS_SURE, _LEAST, _MOST = 0.03, 100.0, 0.002, 100.0
"""Cost of a token as a part of a step of none: what is assumed of it, as if it had been measured of steps with such a
sum of squares (as ridge regression has it), and the bounds of what is told."""


@dataclass
class StepCost:
    """What a token more costs, by a line through the times of steps and their numbers of tokens (least squares, of
    which older ones count less). ``relative``: as a part of a step of none; where steps are too much alike to tell,
    what is assumed of it comes back. ``tokens``: of a step, on average."""

    relative: float = _ASSUMED
    tokens: float = 0.0
    _weight: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0

    def took(self, tokens: int, seconds: float) -> None:
        """A step of so many."""
        if self._weight:
            seconds = min(seconds, _OUTLIER * self._seconds)
        before = self._weight * _KEPT
        self._weight = before + 1
        share = before / self._weight
        more, longer = tokens - self.tokens, seconds - self._seconds
        self.tokens += more / self._weight
        self._seconds += longer / self._weight
        self._squares = self._squares * _KEPT + share * more * more
        self._products = self._products * _KEPT + share * more * longer
        slope = (self._products + _AS_SURE * _ASSUMED * self._seconds) / (self._squares + _AS_SURE)
        base = self._seconds - slope * self.tokens
        self.relative = max(_LEAST, slope / max(base, slope / _MOST)) if slope > 0 else _LEAST

    @property
    def base(self) -> float:
        """Seconds of a step of none; 0.0 before any was measured."""
        return self._seconds / (1 + self.relative * self.tokens)

    @property
    def alike(self) -> bool:
        """Whether steps had too much the same number of tokens to tell."""
        return self._squares < _ALIKE

    def price(self, answers: int) -> float:
        """What a guess for each of so many ``answers`` lengthens their step by, as a part of one without: also the
        least chance of coming true with which one is worth its time."""
        return answers * self.relative / (1 + answers * self.relative)


@dataclass
class Speculation:
    """Guesses for all sequences. ``most``: tokens of one in a step. ``ends``: tokens that are never guessed.
    ``drafted`` tokens were computed, of which ``accepted`` came true."""

    most: int
    ends: Collection[int]
    limits: Limits
    cost: StepCost = field(default_factory=StepCost)
    drafted: int = 0
    accepted: int = 0

    def active(self, sequence: Sequence) -> bool:
        """Whether tokens of it may be guessed now."""
        return len(sequence.tokens) >= sequence.guesses.resumes

    def may_run_ahead(self, sequence: Sequence) -> bool:
        """Whether its next step may begin before the token is known by which what follows would be looked up: its
        guesses pause, or nothing was found lately and now is not one of the times to look."""
        missing = sequence.guesses.missed >= SELDOM and len(sequence.tokens) % SELDOM != 0
        return missing or not self.active(sequence)

    def ran(self, batch: Batch) -> None:
        """The model has run ``batch``, which may compute nothing; its tokens are not chosen yet."""

    def look_ahead(self, running: Collection[Sequence], pace: Pace) -> None:
        """The next batch is to be made, of those that are ``running``: for n-grams there is nothing to be done."""

    def drafts(self, sequence: Sequence, most: int, answers: int) -> tuple[int, ...]:
        """Guesses, at most so many, for a step that brings the last token of ``sequence`` and those of so many
        ``answers``: none that could be the last one of its answer, or makes it a long one."""
        count = self.worth(sequence, most, answers)
        return self.drafted_of(sequence, sequence.guesses.lookup.guess(sequence.tokens, count)) if count else ()

    def worth(self, sequence: Sequence, most: int, answers: int) -> int:
        """How many, of ``most``, are worth their time: as of `drafts`."""
        if sequence.remaining != 1 or sequence.embedded or not self.active(sequence):
            return 0
        most = min(most, self.limits.before_end(sequence))
        if most < 1:
            return 0
        count = sequence.guesses.worth(self.price(answers), self.most)
        if not count:
            if sequence.guesses.steps >= TRIED:
                sequence.guesses.stop(len(sequence.tokens))
                return 0
            count = 1
        if self.cost.alike and self.cost.tokens >= answers * count:
            count = -(-count // 2)  # so that steps differ
        return min(count, most)

    def price(self, answers: int) -> float:
        """As of `StepCost`."""
        return self.cost.price(answers)

    def drafted_of(self, sequence: Sequence, found: tuple[int, ...]) -> tuple[int, ...]:
        """What is computed of the guesses that were ``found``."""
        sequence.guesses.missed = 0 if found else sequence.guesses.missed + 1
        stops = sequence.params.stop_token_ids
        end = next((place for place, token in enumerate(found) if token in self.ends or token in stops), len(found))
        return found[:end]

    def took(self, tokens: int, seconds: float, *, prompts: bool) -> None:
        """A step of so many tokens came ``seconds`` after the one before; ``prompts``: with some of these."""
        if not prompts:
            self.cost.took(tokens, seconds)

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """The first ``accepted`` of so many guesses came true."""
        sequence.guesses.learn(drafted, accepted)
        self.drafted += drafted
        self.accepted += accepted
