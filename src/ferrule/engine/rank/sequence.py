"""One request in progress, as the driver keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrule.engine.messages import Hand
from ferrule.engine.rank.cache.held import HeldBlocks
from ferrule.engine.rank.driver.guesses import Guesses
from ferrule.engine.rank.vision.sights import Sights
from ferrule.engine.types import SamplingParams


@dataclass(eq=False)
class Sequence:
    """One request in progress.

    ``tokens`` are the prompt and what was generated; ``cached`` of them are in the cache and ``pending`` more in a
    batch that is under way, guesses included. ``rejected``: of guesses that were wrong, which have room in the cache
    until its next batch. ``stepwise``: the tokens behind the first ``whole`` ones, the prompt if not more, are
    computed in steps of a `run`, as they were made, even if they are known already. ``long``: see `Limits.short`.
    ``adapter``: as in `Batch`. ``embedded``: it ends with its prompt, whose hidden states are wanted. ``scored``: how
    many of the prompt's tokens have their log-probabilities, the first not counted, which has none. ``sights``: the
    images of its prompt. ``held``: its blocks in the prefix cache. ``overtaken``: tokens of later prompts that were
    computed while its own waited. ``preempted``: it has run before, and waits to go on. ``guesses``: what may follow.
    ``forced``: places of tokens that were not sampled, as its grammar left no choice. ``hand``: what of its prompt goes
    to other ranks.
    """

    identity: int
    tokens: list[int]
    prompt: int
    params: SamplingParams
    stepwise: bool = False
    adapter: int = 0
    whole: int = 0
    long: bool = False
    embedded: bool = False
    scored: int = 0
    sights: Sights | None = None
    cached: int = 0
    pending: int = 0
    rejected: int = 0
    cancelled: bool = False
    overtaken: int = 0
    preempted: bool = False
    held: HeldBlocks = field(default_factory=lambda: HeldBlocks(b""))
    guesses: Guesses = field(default_factory=Guesses)
    forced: set[int] = field(default_factory=set)
    hand: Hand | None = None

    @property
    def priority(self) -> int:
        return self.params.turn.priority

    @property
    def queue(self) -> str:
        return self.params.turn.queue

    @property
    def place(self) -> tuple[int, int]:
        """Its place among those that run: what comes later gives way to it."""
        return self.priority, self.identity

    @property
    def remaining(self) -> int:
        """Tokens that are known but not yet computed: `run` while generating, more during the prompt."""
        return len(self.tokens) - self.cached

    @property
    def run(self) -> int:
        """Tokens that its answer brings at once: one, and those behind it that were forced."""
        count = 1
        while self.cached + count in self.forced:
            count += 1
        return count

    @property
    def step(self) -> int:
        """Tokens that it brings next, if there is room for them."""
        if not self.stepwise:
            return self.remaining
        whole = max(self.prompt, self.whole)
        return whole - self.cached if self.cached < whole else self.run

    @property
    def answers(self) -> bool:
        """Whether it brings what its answer brings at once, and no more."""
        return self.step <= self.run

    def left_after(self, count: int) -> int:
        """Tokens that are known and not computed once the ``count`` under way are."""
        return self.remaining - count

    def scores(self, count: int) -> bool:
        """Whether log-probabilities are wanted of tokens of the prompt that follow one of its next ``count``."""
        if self.params.prompt_logprobs is None:
            return False
        return max(self.scored, self.cached) < min(self.prompt - 1, self.cached + count)

    @property
    def shares(self) -> bool:
        """Whether it takes part in the prefix cache. Placeholders of images are equal tokens for different images."""
        return not self.embedded and self.sights is None

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt
