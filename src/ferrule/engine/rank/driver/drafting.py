"""Speculation by a draft model (Leviathan et al. 2023): its guesses for all answers of a batch are made together,
before that, and their price is also the time that it takes, as measured.

It proposes what it finds likeliest, whatever is sampled: a guess is kept where it is what the large model draws, so an
answer is what it would be without, token by token.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.driver.pace import RIDGE, Line, Pace
from ferrule.engine.rank.driver.speculation import Speculation
from ferrule.engine.rank.sequence import Sequence

_SOONEST = 0.1
"""Of the time between two steps that a step without the draft model's takes at least: what is measured overlaps."""


class Drafts(Protocol):
    """Who guesses: a draft model (`DraftModel`) or the model's own layer (`MtpDraft`). ``most``: tokens of a step.
    ``seconds``: of a step that guesses one token, by the number of sequences."""

    most: int
    seconds: Line

    def ran(self, batch: Batch) -> None:
        """The model has run ``batch``, just now."""
        ...

    def follow(self, running: Collection[Sequence]) -> None:
        """Forget all sequences but those ``running``."""
        ...

    def guess(self, wanted: Mapping[Sequence, int], ends: Collection[int], piece: int) -> dict[int, list[int]]:
        """What may follow each sequence, by identity, at most as many tokens as are ``wanted``: up to one of ``ends``.
        ``piece``: as of `DraftModel.guess`."""
        ...


class _Proposed(NamedTuple):
    """``guesses`` of what follows a sequence of ``length`` tokens."""

    length: int
    guesses: tuple[int, ...]


@dataclass
class Drafting(Speculation):
    """``draft``: who guesses. ``step_seconds``: what a step takes, until steps were measured."""

    draft: Drafts = field(kw_only=True)
    step_seconds: float = field(kw_only=True)
    _proposed: dict[int, _Proposed] = field(default_factory=dict)
    _spent: float = 0.0

    def look_ahead(self, running: Collection[Sequence], pace: Pace) -> None:
        """Guess for the answers that the next batch may bring: of a pipeline's, for as many as come in one. What a
        request foretells is looked up as n-grams are."""
        begin = time.perf_counter()
        self.draft.follow(running)
        self._spent += time.perf_counter() - begin
        self._proposed.clear()
        share = -(-len(running) // self.limits.batches)
        ready = [each for each in running if each.remaining == 1 and not each.pending and not each.embedded][:share]
        wanted: dict[Sequence, int] = {}
        for each in ready:
            count = self.worth(each, self.most, len(ready))
            foretold = each.guesses.lookup.guess(each.tokens, count) if each.params.predicted and count else ()
            if foretold:
                self._proposed[each.identity] = _Proposed(len(each.tokens), foretold)
            elif count:
                wanted[each] = count
        if not wanted:
            return
        begin = time.perf_counter()
        seconds = pace.seconds_beside(len(ready), 1) if len(ready) > 1 else None
        piece = self.draft.most if seconds is None else min(self.draft.most, max(RIDGE, pace.within(seconds, 0)))
        found = self.draft.guess(wanted, self.ends, piece)
        for each in wanted:
            self._proposed[each.identity] = _Proposed(len(each.tokens), tuple(found.get(each.identity, ())))
        self._spent += time.perf_counter() - begin

    def ran(self, batch: Batch) -> None:
        """See `Speculation.ran`."""
        begin = time.perf_counter()
        self.draft.ran(batch)
        self._spent += time.perf_counter() - begin

    def drafts(self, sequence: Sequence, most: int, answers: int) -> tuple[int, ...]:
        """See `Speculation.drafts`."""
        proposed = self._proposed.get(sequence.identity)
        if proposed is None or proposed.length != len(sequence.tokens):
            return ()
        return self.drafted_of(sequence, proposed.guesses[: max(0, most)])

    def price(self, answers: int) -> float:
        """As of `StepCost`, with a step of the draft model for the guesses of all ``answers``."""
        alone = answers * self.cost.relative
        drafted = self.draft.seconds.at(answers) / (self.cost.base or self.step_seconds)
        return (alone + drafted) / (1 + alone)

    def took(self, tokens: int, seconds: float, *, prompts: bool) -> None:
        """See `Speculation.took`: without the time that guesses took."""
        spent, self._spent = self._spent, 0.0
        super().took(tokens, max(seconds - spent, _SOONEST * seconds), prompts=prompts)
