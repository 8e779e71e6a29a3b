"""What a batch says of its spans beside their tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ferrule.engine.rank.batch import Batch, Handed, Span
from ferrule.engine.rank.sequence import Sequence


def load_of(batch: Batch, sequences: Mapping[int, Sequence]) -> tuple[int, int, float]:
    """Answers that get their next tokens by ``batch``, forced and guessed ones with it, its tokens of prompts, and how
    many these attend to together. Before it is complete."""
    prompts = [span for span in batch.spans if not _is_answer(span, sequences.get(span.sequence))]
    return len(batch.spans) - len(prompts), sum(span.tokens for span in prompts), attended_by(prompts)


def attended_by(spans: Iterable[Span]) -> float:
    """Tokens that those of ``spans`` attend to together, about."""
    return sum(span.tokens * (span.seen + span.tokens / 2) for span in spans)


def _is_answer(span: Span, sequence: Sequence | None) -> bool:
    given = span.tokens - span.drafted
    if sequence is None or (span.sample and given == 1):
        return given == 1
    if given == 1:  # or a piece of its prompt
        return sequence.answers
    return sequence.forced.issuperset(range(span.seen + 1, span.seen + given))


def adapters_of(sequences: Iterable[Sequence]) -> tuple[int, ...]:
    """`Batch.adapters` of spans of these ``sequences``."""
    numbers = tuple(each.adapter for each in sequences)
    return numbers if any(numbers) else ()


def axes_of(spans: Iterable[Span], sequences: Iterable[Sequence]) -> tuple[int, ...]:
    """`Batch.axes` of ``spans``, each of one of ``sequences``."""
    found = [
        (span, None if each.sights is None else each.sights.axes) for span, each in zip(spans, sequences, strict=True)
    ]
    if all(axes is None for _, axes in found):
        return ()
    parts = [
        np.broadcast_to(np.arange(span.seen, span.seen + span.tokens), (3, span.tokens))
        if axes is None
        else axes.of(span.seen, span.seen + span.tokens)
        for span, axes in found
    ]
    return tuple(np.concatenate(parts, axis=1).ravel().tolist())


def handed_of(spans: Iterable[Span], sequences: Mapping[int, Sequence]) -> tuple[Handed, ...]:
    """Those of ``spans`` of whose prompts other ranks are to have something."""
    hands = ((number, sequences[span.sequence].hand) for number, span in enumerate(spans))
    return tuple(Handed(number, hand) for number, hand in hands if hand is not None)
