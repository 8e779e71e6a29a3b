"""What is told of the tokens that a step has made. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.engine.messages import NewToken
from ferrule.engine.rank.sampling.sampler import Choice
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.types import FinishReason


def new_tokens(sequence: Sequence, reason: FinishReason | None, made: list[Choice], drafted: int) -> Iterator[NewToken]:
    """What is told of the tokens ``made`` in a step for which so many were guessed, all but the last one right."""
    right, first = len(made) - 1, sequence.generated == len(made)
    for place, choice in enumerate(made):
        cached = min(sequence.held.reused or 0, sequence.prompt) if first and not place else None
        yield NewToken(
            sequence.identity,
            choice.token,
            choice.logprob,
            choice.top,
            reason if place == right else None,
            cached,
            guessed=place < right,
            wrong=0 if place else drafted - right,
        )
