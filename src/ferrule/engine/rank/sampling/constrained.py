"""Constrained sampling: which tokens a sequence's grammar allows next, and those that it leaves no choice about."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.grammar import GrammarError, grammar_tokenizer, open_matcher, told
from ferrule.engine.rank.sampling.numbers import Numbers, Texts
from ferrule.engine.types import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

HANDOVER = 150e-6
"""Seconds of a mask from which on another thread computes it, while the ranks compute the step. A shorter one is
computed where it is wanted: to hand it over and back takes as long, of the processors that the ranks compute with."""
_NEWEST, _OUTLIER = 1 / 8, 4 * HANDOVER
"""Weight of the newest mask in how long they take, and what counts of it at most: the rest was another program's."""


class Opened(NamedTuple):
    """A matcher after the tokens that an answer has, the places of those that were forced, and its numbers in JSON."""

    matcher: LLMatcher
    forced: frozenset[int]
    numbers: Numbers | None


class Grammars:
    """Threads that compile the grammars of a model's requests and compute their masks; the library lets others run
    meanwhile. Those being compiled do not hold up the masks of answers in progress. ``ends``: ids that end answers."""

    def __init__(self, vocabulary: int, ends: Collection[int]) -> None:
        self._vocabulary, self._ends = vocabulary, ends
        self._opening = ThreadPoolExecutor(1, thread_name_prefix="ferrule-grammar")
        self._masking = ThreadPoolExecutor(1, thread_name_prefix="ferrule-mask")
        self._tokenizer: Future[LLTokenizer] | None = None
        self._texts: Texts | None = None

    def learn(self, tokenizer: str) -> None:
        """Take the model's tokenizer, as ``tokenizer.json`` has it; it comes before the first constraint."""
        self._tokenizer = self._opening.submit(grammar_tokenizer, tokenizer, self._vocabulary, self._ends)

    def open(self, constraint: Constraint, made: Sequence[int], *, skips: bool = False) -> Matcher:
        """Matcher of an answer that has the tokens ``made`` already; ``skips``: as of `Matcher`."""
        opened = self._opening.submit(self._opened, constraint, tuple(made), skips)
        return Matcher(self._masking, opened, self._vocabulary, skips=skips)

    def _opened(self, constraint: Constraint, made: tuple[int, ...], skips: bool) -> Opened:
        if self._tokenizer is None:
            raise GrammarError("the ranks did not get the tokenizer for it; please report this")
        tokenizer = self._tokenizer.result()
        matcher, numbers = open_matcher(tokenizer, constraint), None
        if constraint.kind == "json_schema":
            self._texts = self._texts or Texts(tokenizer, self._vocabulary)
            numbers = Numbers(self._texts)
        forced = set[int]()
        for place, token in enumerate(made):
            if skips and place and not forced & {place - 1, place}:  # as `Matcher.go_on`, after each that was sampled
                forced.update(range(place, min(place + len(matcher.compute_ff_tokens()), len(made))))
            matcher.consume_token(token)
            if numbers is not None:
                numbers.took(token)
        return Opened(matcher, frozenset(forced), numbers)


class Matcher:
    """State of one answer in its grammar. ``opened``: after the tokens that the answer has. ``skips``: tokens that are
    forced are not sampled, which makes no other answer: of a text without alternative the library's masks allow only
    the tokens that the model's tokenizer makes of it. ``forced``, once it has begun: places of such in what it had."""

    def __init__(
        self, threads: ThreadPoolExecutor, opened: Future[Opened], vocabulary: int, *, skips: bool = False
    ) -> None:
        self._threads, self._opened, self._vocabulary, self._skips = threads, opened, vocabulary, skips
        self.forced = frozenset[int]()
        self._computing: Future[NDArray[np.uint8]] | None = None
        self._mask: NDArray[np.uint8] | None = None
        self._seconds = 0.0
        """That a mask takes, as of late."""

    def ready(self) -> bool:
        """Whether it is known if the grammar can be followed; until then the sequence should not be run."""
        return self._opened.done()

    def begin(self) -> None:
        """Compute the first mask. Raises `GrammarError` where the grammar cannot be compiled."""
        self._matcher, self.forced, self._numbers = self._opened.result()
        self._computing = self._threads.submit(self._compute)

    def mask(self) -> NDArray[np.uint8]:
        """A bit for each token of the vocabulary, from the lowest one of a byte on: whether it can come next. Waits for
        it. Raises `GrammarError` where the grammar has become too complex."""
        if self._mask is None:
            self._mask = self._compute() if self._computing is None else self._computing.result()
            self._computing = None
        return self._mask

    def took(self, token: int) -> None:
        """The answer goes on with ``token``."""
        self._mask = None
        self._matcher.consume_token(token)
        self._note(token)

    def go_on(self) -> list[int]:
        """Have the next mask computed, if another thread should. Returns the tokens that are forced to come before, as
        taken."""
        forced = self._matcher.compute_ff_tokens() if self._skips else []
        if forced:
            self._matcher.consume_tokens(forced)
            self._note(*forced)
        if self._seconds > HANDOVER:
            self._computing = self._threads.submit(self._compute)
        return forced

    def _compute(self) -> NDArray[np.uint8]:
        begin = time.perf_counter()
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: -(-self._vocabulary // 8)]
        if self._matcher.is_error():
            raise GrammarError(told(self._matcher))
        if self._numbers is not None:
            mask = self._numbers.bounded(mask)
        self._seconds += _NEWEST * (min(time.perf_counter() - begin, _OUTLIER) - self._seconds)
        return mask

    def _note(self, *tokens: int) -> None:
        if self._numbers is not None:
            for token in tokens:
                self._numbers.took(token)
