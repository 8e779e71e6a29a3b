"""Blocks that sequences may begin with, in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ferrule.engine.rank.batch import Read
from ferrule.engine.rank.cache.prefix import BLOCK, PrefixIndex
from ferrule.engine.rank.sequence import Sequence


def shared_keys(prefixes: PrefixIndex, sequence: Sequence) -> list[bytes]:
    """Of the blocks that ``sequence`` may begin with: its last token is computed, and so are all whose
    log-probabilities are wanted."""
    if not prefixes.enabled or not sequence.shares or sequence.scores(sequence.prompt):
        return []
    return sequence.held.keys_of(sequence.tokens, (len(sequence.tokens) - 1) // BLOCK)


def seekers(sequences: Iterable[Sequence]) -> Iterator[Sequence]:
    """Those that have not begun, and for which blocks were not looked for on disk."""
    for each in sequences:
        if each.shares and not (each.cached or each.pending or each.held.sought):
            yield each


def next_read(
    prefixes: PrefixIndex, sequences: Iterable[Sequence], room: int, most: int | None
) -> tuple[Sequence, tuple[Read, ...]] | None:
    """One of ``sequences``, and what is to be read for it; None where there is none, or where that would take longer
    than to compute it. ``room``: tokens that may still be held. ``most``: blocks that may be read now; where there were
    more they are sought again."""
    for sequence in list(seekers(sequences)):
        found = prefixes.to_read(shared_keys(prefixes, sequence), room, most)
        sequence.held.sought = most is None or len(found) < most
        if found:
            return sequence, found
    return None
