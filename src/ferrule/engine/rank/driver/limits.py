"""Limits of the scheduler: how much runs at once, and how much of it in one step."""

from __future__ import annotations

from dataclasses import dataclass

BESIDE_ANSWERS = 32
"""On processors, whose ridge is near 10 tokens, pieces of a third of this made gaps of 35 ms of 84, and 4 streams that
begin at once by 14 % slower, 16 by 25 %: the last ones wait longer for their first token, and then run alone."""


@dataclass(frozen=True)
class Limits:
    """``batch_tokens``: the most tokens in one step. ``cache_tokens``: the most that the caches hold together.
    ``sequences``: the most that run at once. ``context``: the most tokens of one sequence. ``batches``: how many
    batches are on their way through the pipeline at once (its number of stages). ``short``: tokens beyond which a
    sequence is computed again, with the rotary frequencies of long ones (`long_rope`); None: all are alike. ``ridge``:
    tokens of a step up to which it waits for the weights to be read, and beyond which for arithmetic (the ridge point
    of the roofline model, Williams et al. 2009). ``scored``: the most tokens of one step whose logits are kept for the
    log-probabilities of prompts. ``whole``: a prompt is computed in one step, however long it is (an encoder's)."""

    batch_tokens: int
    cache_tokens: int
    sequences: int
    context: int
    batches: int = 1
    short: int | None = None
    ridge: int = 16
    scored: int = 512
    whole: bool = False

    def beside(self, answers: int) -> int:
        """Prompt tokens of a batch that also brings the next tokens of so many answers, which wait for all of it: as
        many as cost them nothing, and `BESIDE_ANSWERS` where that is less."""
        return max(BESIDE_ANSWERS, self.ridge - answers)
