"""Blocks of the prefix cache in the cache of the model's own layer for guesses: those that the model keeps, under the
same numbers, so that a sequence which begins with them has them here, too.

That layer has computed a token later than the model, so a block of it ends with the first token behind the model's
block. Where another sequence goes on otherwise, that one is wrong in it, of 64, and guesses may be a little worse.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from ferrule.engine.rank.batch import Batch, Kept
from ferrule.engine.rank.cache.prefix import BLOCK


@dataclass
class Mirror:
    """``blocks``: the numbers of those that are here, or will be with the next batch."""

    blocks: set[int] = field(default_factory=set)
    _due: dict[int, dict[int, int]] = field(default_factory=dict)
    """Sequence -> place -> block, which the model keeps, and which are not computed here yet."""
    _kept: list[Kept] = field(default_factory=list)
    _dropped: list[int] = field(default_factory=list)

    def told(self, batch: Batch) -> list[int]:
        """The model has done what ``batch`` says. Returns the blocks that are no more."""
        for each in batch.kept:
            if each.block not in self.blocks:
                self._due.setdefault(each.sequence, {})[each.place] = each.block
        gone = set(batch.dropped)
        for places in self._due.values():
            for place in [place for place, block in places.items() if block in gone]:
                del places[place]
        never = {each.block for each in self._kept if each.block in gone}
        self._kept = [each for each in self._kept if each.block not in never]
        dropped = [block for block in batch.dropped if block in self.blocks]
        self.blocks.difference_update(dropped)
        self._dropped += [block for block in dropped if block not in never]
        return dropped

    def held(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Those of ``blocks``, which follow each other, that are here up to the first that is not."""
        return tuple(takewhile(self.blocks.__contains__, blocks))

    def keep(self, sequence: int, known: int) -> None:
        """``sequence`` has so many tokens here, from its second on: keep what is due of them. Its last token is in no
        block, as it may be computed again."""
        places = self._due.get(sequence, {})
        for place in [place for place in places if known > BLOCK * (place + 1)]:
            block = places.pop(place)
            if block not in self.blocks:  # else an equal one is here
                self._kept.append(Kept(sequence, place, block))
                self.blocks.add(block)

    def forget(self, sequence: int) -> None:
        """It is no more."""
        self._due.pop(sequence, None)

    @property
    def clash(self) -> bool:
        """Whether a number is to be kept anew that has to be dropped before."""
        dropped = set(self._dropped)
        return any(each.block in dropped for each in self._kept)

    def take_kept(self) -> tuple[Kept, ...]:
        """What the next batch is to keep."""
        kept, self._kept = tuple(self._kept), []
        return kept

    def take_dropped(self) -> tuple[int, ...]:
        """What it is to drop."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped
