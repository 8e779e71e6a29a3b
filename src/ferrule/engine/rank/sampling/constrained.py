"""Constrained sampling: which tokens a sequence's grammar allows next, computed while the ranks compute the step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ferrule.engine.grammar import GrammarError, grammar_tokenizer, open_matcher, told
from ferrule.engine.types import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class Grammars:
    """Threads that compile the grammars of a model's requests and compute their masks; the library lets others run
    meanwhile. Those being compiled do not hold up the masks of answers in progress. ``ends``: ids that end answers."""

    def __init__(self, vocabulary: int, ends: Collection[int]) -> None:
        self._vocabulary, self._ends = vocabulary, ends
        self._opening = ThreadPoolExecutor(1, thread_name_prefix="ferrule-grammar")
        self._masking = ThreadPoolExecutor(1, thread_name_prefix="ferrule-mask")
        self._tokenizer: Future[LLTokenizer] | None = None

    def learn(self, tokenizer: str) -> None:
        """Take the model's tokenizer, as ``tokenizer.json`` has it; it comes before the first constraint."""
        self._tokenizer = self._opening.submit(grammar_tokenizer, tokenizer, self._vocabulary, self._ends)

    def open(self, constraint: Constraint, made: Sequence[int]) -> Matcher:
        """Matcher of an answer that has the tokens ``made`` already."""
        return Matcher(self._masking, self._opening.submit(self._opened, constraint, tuple(made)), self._vocabulary)

    def _opened(self, constraint: Constraint, made: tuple[int, ...]) -> LLMatcher:
        if self._tokenizer is None:
            raise GrammarError("the ranks did not get the tokenizer for it; please report this")
        matcher = open_matcher(self._tokenizer.result(), constraint)
        matcher.consume_tokens(list(made))
        return matcher


class Matcher:
    """State of one answer in its grammar. ``opened``: after the tokens that the answer has."""

    def __init__(self, threads: ThreadPoolExecutor, opened: Future[LLMatcher], vocabulary: int) -> None:
        self._threads, self._opened, self._vocabulary = threads, opened, vocabulary
        self._next: Future[Tensor] | None = None

    def ready(self) -> bool:
        """Whether it is known if the grammar can be followed; until then the sequence should not be run."""
        return self._opened.done()

    def begin(self) -> None:
        """Compute the first mask. Raises `GrammarError` where the grammar cannot be compiled."""
        matcher = self._opened.result()
        self._next = self._threads.submit(self._mask, matcher)

    def forbidden(self) -> Tensor:
        """(vocabulary,): tokens that cannot come next, in host memory. Waits for them. Raises `GrammarError` where the
        grammar has become too complex."""
        assert self._next is not None
        return self._next.result()

    def took(self, token: int) -> None:
        """The answer goes on with ``token``: compute the next mask."""
        self._next = self._threads.submit(self._advance, token)

    def _advance(self, token: int) -> Tensor:
        matcher = self._opened.result()
        matcher.consume_token(token)
        return self._mask(matcher)

    def _mask(self, matcher: LLMatcher) -> Tensor:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise GrammarError(told(matcher))
        return torch.from_numpy(np.unpackbits(bits, count=self._vocabulary, bitorder="little") == 0)
