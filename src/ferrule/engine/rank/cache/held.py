"""The blocks of the prefix cache that a sequence has, from its first token on. Pure bookkeeping of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ferrule.engine.rank.cache.prefix import BLOCK, Block, PrefixIndex, block_key, root_key


@dataclass
class HeldBlocks:
    """``root``: of `root_key`. ``keys``: of the sequence's blocks, as far as they were asked for. ``reused``: tokens
    that it began with the first time, None before. ``sought``: blocks for it were looked for on disk."""

    root: bytes
    keys: list[bytes] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    reused: int | None = None
    sought: bool = False

    def keys_of(self, tokens: Sequence[int], count: int) -> list[bytes]:
        """Keys of the first ``count`` blocks of ``tokens``, which only grow from one call to the next."""
        while len(self.keys) < count:
            start = BLOCK * len(self.keys)
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(parent, tokens[start : start + BLOCK]))
        return self.keys[:count]

    def begin(self, index: PrefixIndex, keys: Sequence[bytes]) -> int:
        """Begin with blocks of earlier sequences; returns how many tokens they hold."""
        self.blocks = index.match(keys)
        index.begin(self.blocks)
        return BLOCK * len(self.blocks)

    def end(self, index: PrefixIndex) -> None:
        """The sequence is to be computed again, or has ended."""
        index.end(self.blocks)
        self.blocks = []

    def keep(self, index: PrefixIndex, identity: int, tokens: Sequence[int], count: int, room: int) -> None:
        """Keep the first ``count`` blocks of ``tokens``, which are computed, for other sequences, as far as there is
        ``room``: as of `PrefixIndex.keep`."""
        keys = self.keys_of(tokens, count)
        for place in range(len(self.blocks), count):
            parent = self.blocks[-1] if self.blocks else None
            block = index.keep(identity, place, keys[place], parent, room)
            if block is None:
                return
            self.blocks.append(block)
            room -= BLOCK

    def lengthen(self) -> None:
        """Its keys become others: as of `root_key`."""
        self.root, self.keys, self.sought = root_key(self.root.hex(), long=True), [], False
