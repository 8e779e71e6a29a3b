"""Limits of the scheduler: how much runs at once, and how much of it in one step."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.engine.rank.sequence import Sequence


@dataclass(frozen=True)
class Limits:
    """``batch_tokens``: the most tokens in one step. ``cache_tokens``: the most that the caches hold together.
    ``sequences``: the most that run at once. ``context``: the most tokens of one sequence. ``batches``: how many
    batches are on their way through the pipeline at once (its number of stages). ``short``: tokens beyond which a
    sequence is computed again, with the rotary frequencies of long ones (`long_rope`); None: all are alike. ``scored``:
    the most tokens of one step whose logits are kept for the log-probabilities of prompts. ``whole``: a prompt is
    computed in one step, however long it is (an encoder's)."""

    batch_tokens: int
    cache_tokens: int
    sequences: int
    context: int
    batches: int = 1
    short: int | None = None
    scored: int = 512
    whole: bool = False

    def before_end(self, sequence: Sequence) -> int:
        """How many tokens ``sequence`` can have before its last one, or before it is a long one."""
        tokens, most = len(sequence.tokens), sequence.params.max_tokens
        rooms = [self.context - tokens - 1]
        if most is not None:
            rooms.append(most - sequence.generated - 1)
        if self.short is not None and not sequence.long:
            rooms.append(self.short - tokens)
        return min(rooms)
