"""What a hand-over takes of a rank's cache, and brings into it, by layers and heads."""

from __future__ import annotations

from typing import Any, Protocol

Part = tuple[int, int, int]
"""Of the rank's layers the place of one, and key/value heads of it: the first one, and how many."""


class PartStore(Protocol):
    """Blocks of a rank's cache by their parts. Bytes of a part are as native programs keep them: block after block its
    pages of 16 tokens, in these head after head the keys, token by token for each of their numbers (for each two, where
    these are bfloat16), and the values, number by number for each token, filled up to 16
    (`native/src/step/cache.h`)."""

    def open_block(self, block: int) -> None:
        """A new block, whose contents are still to be put into it."""
        ...

    def part_bytes(self, part: Part) -> int:
        """Of one block."""
        ...

    def copy_part(self, sequence: int, place: int, count: int, part: Part, to: Any) -> None:
        """Of ``count`` blocks of a sequence from block ``place`` on, into an array of bytes."""
        ...

    def put_part(self, blocks: list[int], part: Part, data: Any) -> None:
        """Into blocks that were opened; also from another thread, while a step runs that does not use them."""
        ...
