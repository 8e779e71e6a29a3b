"""Keys and values of the tokens that each sequence has seen, for the layers of this rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor

from ferrule.engine.rank.cache.pages import PagedCache, Pages
from ferrule.engine.rank.cache.rows import Rows
from ferrule.engine.rank.cache.sequence import SequenceCache

Masks = dict[tuple[int, int, int | None, int | None], Tensor]
"""By the number of keys, how many query heads share a key/value head, the sliding window and the chunk."""


@dataclass
class Segment:
    """Segment of a batch that is one sequence's: ``start`` to ``stop`` of the flattened tokens. ``masks``: what its new
    tokens may see, made by the first layer of each kind for all of them. ``blocks``: begin and end of those parts of
    the sequence whose tokens see each other."""

    start: int
    stop: int
    cache: SequenceCache
    masks: Masks = field(default_factory=dict)
    blocks: Sequence[tuple[int, int]] = ()


class KVCache:
    """All sequences' caches on this rank, and which of them the batch now running is made of. ``border``: tokens beyond
    which a sequence is a long one; None: all are alike. ``asks_tokens``: layers read ``tokens`` (1, tokens) of it.
    ``pages``: that the caches of sequences which begin from now on are in, if any. ``rows``: in place of segments, the
    batch of a step that is captured."""

    def __init__(self) -> None:
        self.pages: Pages | None = None
        self.rows: Rows | None = None
        self.sequences: dict[int, SequenceCache] = {}
        self.segments: list[Segment] = []
        self.border: int | None = None
        self.asks_tokens = False
        self.tokens: Tensor | None = None

    @contextmanager
    def batch(
        self,
        sequences: list[tuple[int, int, int]],
        known: Mapping[int, int] = MappingProxyType({}),
        blocks: Mapping[int, Sequence[tuple[int, int]]] = MappingProxyType({}),
    ) -> Iterator[None]:
        """Run a batch of (sequence id, tokens it has seen, tokens in this batch). Seen 0 starts a sequence afresh, of
        which so many tokens are ``known``: by default those in this batch. ``blocks``: of a sequence, as of
        `Segment`."""
        self.segments = []
        start = 0
        for identity, seen, tokens in sequences:
            if seen == 0:
                self.begin(identity, max(tokens, known.get(identity, 0)))
            cache = self.sequences[identity]
            self.segments.append(Segment(start, start + tokens, cache, blocks=blocks.get(identity, ())))
            start += tokens
        if self.pages is not None:
            paged = [(each.cache, each.cache.length + each.stop - each.start) for each in self.segments]
            self.pages.prepare([(cache, end) for cache, end in paged if isinstance(cache, PagedCache)])
        yield
        for segment in self.segments:
            segment.cache.advance(segment.stop - segment.start)
        self.segments = []

    def release(self, identity: int) -> None:
        sequence = self.sequences.pop(identity, None)
        if sequence is not None:
            sequence.drop()

    def clear(self) -> None:
        """Forget all sequences, also in the midst of a batch, and the pages."""
        for identity in list(self.sequences):
            self.release(identity)
        self.segments, self.tokens, self.rows, self.pages = [], None, None, None

    def begin(self, identity: int, known: int) -> SequenceCache:
        """Start a sequence afresh, of which so many tokens are ``known``."""
        self.release(identity)
        long = self.border is not None and known > self.border
        fresh = SequenceCache(long=long) if self.pages is None else PagedCache(long=long, pool=self.pages)
        self.sequences[identity] = fresh
        return fresh
