"""Index of the prefix cache: which blocks of tokens have their keys and values on every rank, and under what number.

A block is a run of `BLOCK` tokens of a sequence, known by a digest of them and of all before them, as in vLLM's
automatic prefix caching. A sequence begins with the blocks that it shares with earlier ones, and is computed behind
them. Blocks that no sequence has stay until their room is needed; then those go first that cost least to have again,
among equals those used least lately (GreedyDual, Young 1994), and never one before those that continue it.

Only the driver has an index; the other ranks follow what it says in batches. Pure bookkeeping.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import takewhile

from ferrule.engine.rank.batch import Kept, Read

BLOCK = 64
"""Tokens."""
KEY_BYTES = 16
_NEWEST = 0.3
"""Weight of the newest measurement in the mean."""
_FORGIVEN = 0.95
"""By which the time of reading is taken to be less with each time that it is not done: it may have been an outlier."""


def root_key(adapter: str, *, long: bool) -> bytes:
    """What sequences must have in common beside their tokens. ``adapter``: identity of its files, empty for none;
    ``long``: as of `Sequence`."""
    return blake2b(adapter.encode(), digest_size=KEY_BYTES, person=b"long" if long else b"").digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Key of the block of ``tokens`` that follows the one of key ``parent``, or a root."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=KEY_BYTES).digest()


@dataclass(eq=False)
class Block:
    """``users``: sequences that run with it; ``children``: blocks that continue it. ``worth``: by which it is kept, the
    least first to go. ``kept``: whether the ranks have it still."""

    number: int
    key: bytes
    parent: Block | None
    users: int = 0
    children: int = 0
    worth: tuple[float, int] = (0.0, 0)
    kept: bool = True

    @property
    def free(self) -> bool:
        return self.kept and not self.users and not self.children


@dataclass
class Costs:
    """Seconds, as measured: of computing a token of a prompt, and of reading a block from disk."""

    token: float = 1e-3
    read: float = 1e-3

    @property
    def block(self) -> float:
        """Of computing a block."""
        return self.token * BLOCK

    def took(self, seconds: float, *, tokens: int = 0, blocks: int = 0) -> None:
        """So many ``tokens`` were computed, or ``blocks`` read, together."""
        if tokens:
            self.token += _NEWEST * (seconds / tokens - self.token)
        if blocks:
            self.read += _NEWEST * (seconds / blocks - self.read)


@dataclass(frozen=True)
class Orders:
    """What is to be told to the ranks with the next batch: see the fields of `Batch` of the same names."""

    kept: tuple[Kept, ...] = ()
    dropped: tuple[int, ...] = ()
    forgotten: tuple[bytes, ...] = ()


class PrefixIndex:
    """``copies``: ranks hold a block beside what sequences have, rather than share its memory, so that it is of no use
    to a sequence once that has begun. ``most``: tokens of blocks that no sequence has; None: no bound. ``stored``: keys
    of blocks that every rank has on disk, those used least lately first, of at most ``disk``."""

    def __init__(
        self,
        *,
        enabled: bool = True,
        copies: bool = False,
        most: int | None = None,
        disk: int = 0,
        stored: Iterable[bytes] = (),
    ) -> None:
        self.enabled, self.copies, self.most, self.disk = enabled, copies, most, disk
        self.costs = Costs()
        self.blocks: dict[bytes, Block] = {}
        self.stored: OrderedDict[bytes, None] = OrderedDict.fromkeys(stored)
        self._numbers = self._tick = 0
        self._unused = self._expected = 0
        self._clock = 0.0
        self._leaves: list[tuple[tuple[float, int], bytes]] = []
        self._kept: list[Kept] = []
        self._dropped: list[int] = []
        self._forgotten: list[bytes] = []
        self._fit_disk()

    @property
    def tokens(self) -> int:
        """That the blocks hold, and those that are to come."""
        return BLOCK * (len(self.blocks) + self._expected)

    @property
    def unused(self) -> int:
        """Tokens of blocks that no sequence has."""
        return BLOCK * self._unused

    def match(self, keys: Iterable[bytes]) -> list[Block]:
        """The first blocks of a sequence with ``keys`` that the ranks have in memory."""
        found = []
        for key in keys:
            block = self.blocks.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def begin(self, blocks: Sequence[Block]) -> None:
        """A sequence starts with ``blocks``."""
        for block in blocks:
            self._use(block, not self.copies)
        self._touch(blocks)

    def end(self, blocks: Sequence[Block]) -> None:
        """A sequence has ended, or is to be computed again."""
        for block in blocks:
            self._use(block, -(not self.copies))
        self._touch(blocks)
        if self.most is not None:
            self.evict(self._unused - self.most // BLOCK)
        for block in reversed(blocks):  # so that of a chain the last ones are forgotten first
            if block.key in self.stored:
                self.stored.move_to_end(block.key)

    def keep(self, sequence: int, place: int, key: bytes, parent: Block | None, room: int) -> Block | None:
        """Block ``place`` of ``sequence`` is computed: it has it from now on, in place of its own if there was one.
        ``room``: tokens that may still be held, where it is a copy. None where it is not kept."""
        block = self.blocks.get(key)
        if block is None:
            if parent is not None and not parent.kept:
                return None
            if self.copies and room < BLOCK and not self._evict_before(parent):
                return None
            block = self._add(key, parent)
            new = self.disk > 0 and key not in self.stored
            self._kept.append(Kept(sequence, place, block.number, key if new else b""))
            if new:
                self._store(key)
        elif not self.copies:
            self._kept.append(Kept(sequence, place, block.number))
        self.begin([block])
        return block

    def evict(self, count: int) -> int:
        """Drop ``count`` blocks that no sequence has, or as many as there are; returns their number."""
        gone = 0
        while gone < count and self._leaves:
            worth, key = heappop(self._leaves)
            block = self.blocks.get(key)
            if block is None or not block.free or block.worth != worth:
                continue
            self._clock = max(self._clock, worth[0])
            self._drop(block)
            gone += 1
        return gone

    def to_read(self, keys: Sequence[bytes], room: int, most: int | None = None) -> tuple[Read, ...]:
        """Blocks of a sequence with ``keys`` that are to be read from disk, behind those in memory: where that is
        quicker than to compute them. ``room``: tokens that may still be held; more is made of blocks that no sequence
        has. ``most``: so many blocks at most."""
        matched = self.match(keys)
        wanted = list(takewhile(self.stored.__contains__, keys[len(matched) :]))[:most]
        if wanted and self.costs.read >= self.costs.block:
            self.costs.read *= _FORGIVEN
            wanted = []
        room = self._make_room(matched, BLOCK * len(wanted), room)
        return tuple(Read(self._number(), key) for key in wanted[: max(0, room) // BLOCK])

    def expect(self, keys: Sequence[bytes], room: int) -> tuple[Read, ...] | None:
        """Blocks of a sequence with ``keys``, behind those in memory, that other ranks compute: they have room from now
        on. None where there is too little. ``room``: as of `to_read`."""
        matched = self.match(keys)
        count = len(keys) - len(matched)
        if self._make_room(matched, BLOCK * count, room) < BLOCK * count:
            return None
        self._expected += count
        return tuple(Read(self._number(), key) for key in keys[len(matched) :])

    def have_come(self, blocks: Sequence[Read], parent: Block | None, count: int) -> None:
        """All ranks have the first ``count`` of ``blocks``, of `expect`, behind ``parent``; the others do not come. One
        that was computed here meanwhile is dropped."""
        self._expected -= len(blocks)
        for block in blocks[:count]:
            there = self.blocks.get(block.key)
            if there is None and (parent is None or parent.kept):
                there = self._add(block.key, parent, block.block)
                self._touch([there])
            else:
                self._dropped.append(block.block)
            parent = there or parent
        self._dropped += (block.block for block in blocks[count:])

    def have_moved(self, first: int, keys: Sequence[bytes], parents: Sequence[int]) -> None:
        """All ranks have blocks of ``keys``, numbered from ``first`` on, of ranks that had the model before; nothing
        was kept here until now. ``parents``: the place of each one's parent among them, -1: none."""
        there: list[Block] = []
        for place, (key, parent) in enumerate(zip(keys, parents, strict=True)):
            there.append(self._add(key, there[parent] if parent >= 0 else None, first + place))
        self._touch(there[::-1])  # the first ones are those that are needed soon

    def have_read(self, keys: Sequence[bytes], blocks: Sequence[Read], count: int) -> None:
        """All ranks have read the first ``count`` of ``blocks``, which `to_read` gave for ``keys``; they have dropped
        the others, of which the first is missing somewhere."""
        parent = next(reversed(self.match(keys)), None)
        for block in blocks[:count]:
            parent = self._add(block.key, parent, block.block)
            self._touch([parent])
        for block in blocks[count : count + 1]:
            if block.key in self.stored:
                self._forget(block.key)

    def orders(self) -> Orders:
        return Orders(tuple(self._kept), tuple(self._dropped), tuple(self._forgotten))

    def told(self, orders: Orders) -> None:
        """The ranks were told ``orders``, the first of those there are now."""
        del self._kept[: len(orders.kept)]
        del self._dropped[: len(orders.dropped)]
        del self._forgotten[: len(orders.forgotten)]

    def _make_room(self, matched: Sequence[Block], wanted: int, room: int) -> int:
        """Have ``room`` for so many tokens ``wanted`` behind ``matched`` blocks, which stay, if others may go. Returns
        the tokens that there is room for."""
        for block in matched:
            block.users += 1
        room += BLOCK * self.evict(-(-(wanted - room) // BLOCK))
        for block in matched:
            block.users -= 1
        self._touch(matched)
        return room

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _add(self, key: bytes, parent: Block | None, number: int | None = None) -> Block:
        block = self.blocks[key] = Block(self._number() if number is None else number, key, parent)
        self._unused += 1
        if parent is not None:
            parent.children += 1
        return block

    def _use(self, block: Block, change: int) -> None:
        before, block.users = block.users, block.users + change
        self._unused += (not block.users) - (not before)

    def _drop(self, block: Block) -> None:
        del self.blocks[block.key]
        block.kept = False
        self._unused -= 1
        self._dropped.append(block.number)
        if block.parent is not None:
            block.parent.children -= 1
            self._offer(block.parent)

    def _evict_before(self, parent: Block | None) -> bool:
        """Make room for a block that continues ``parent``, which itself stays."""
        if parent is None:
            return self.evict(1) == 1
        parent.users += 1
        found = self.evict(1) == 1
        parent.users -= 1
        self._offer(parent)
        return found

    def _touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._tick += 1
            cost = min(self.costs.read, self.costs.block) if block.key in self.stored else self.costs.block
            block.worth = (self._clock + cost, self._tick)
            self._offer(block)

    def _offer(self, block: Block) -> None:
        if block.free:
            heappush(self._leaves, (block.worth, block.key))
        if len(self._leaves) > 64 + 4 * len(self.blocks):  # most of them are out of date
            self._leaves = sorted((each.worth, each.key) for each in self.blocks.values() if each.free)

    def _store(self, key: bytes) -> None:
        self.stored[key] = None
        self._fit_disk()

    def _fit_disk(self) -> None:
        while len(self.stored) > self.disk:
            self._forget(next(iter(self.stored)))

    def _forget(self, key: bytes) -> None:
        del self.stored[key]
        self._forgotten.append(key)
        if key in self.blocks:  # which now costs more to have again
            self._touch([self.blocks[key]])
