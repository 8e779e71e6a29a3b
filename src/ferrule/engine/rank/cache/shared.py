"""A rank's part of the prefix cache: its blocks, in memory and on disk, as the driver's batches order it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec
import numpy as np

from ferrule.engine.options import STEP_TIMEOUT, RankOptions
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.cache.disk import BlockFiles, make_room
from ferrule.engine.rank.cache.prefix import PrefixIndex
from ferrule.engine.shards.messages import tell_all
from ferrule.fabric import Group
from ferrule.files import cache_directory

log = logging.getLogger(__name__)

FOLDER = "prefix"
"""In the user's cache."""
_TOLD = 25_000
"""Keys that a rank tells the others of at most, those used last: as many as fit into a message."""


class BlockStore(Protocol):
    """Where a runner keeps keys and values of sequences. A block is `cache.prefix.BLOCK` tokens of all its layers."""

    block_bytes: int

    def release(self, sequence: int) -> None: ...

    def keep(self, sequence: int, place: int, block: int) -> None:
        """Keep block ``place`` of a sequence as ``block``, or let the sequence have that, if it is kept already."""
        ...

    def adopt(self, sequence: int, blocks: list[int], known: int) -> None:
        """Start a sequence with ``blocks``. ``known``: as of `Span`."""
        ...

    def drop(self, block: int) -> None: ...

    def read_block(self, block: int) -> bytes:
        """As it is in memory, of `block_bytes`."""
        ...

    def write_block(self, block: int, data: bytes) -> None:
        """The inverse of `read_block`, for a new block."""
        ...


class KeptFiles:
    """Which blocks a rank has on disk: those that all ranks have, of which the driver says what becomes, and in what
    room these leave (``most`` together) those that some rank lacks. They are of use again when the ranks are where they
    were: a rank that starts on a host without any takes nothing from the others. ``found``: those used
    least lately first."""

    def __init__(self, found: Sequence[bytes] = (), common: Collection[bytes] = (), most: int = 0) -> None:
        self._common = {key for key in found if key in common}
        self._apart = OrderedDict.fromkeys(key for key in found if key not in common)
        self._most = most

    def written(self, key: bytes) -> Iterator[bytes]:
        """The block of ``key`` is written, on every rank. Yields those that are to be deleted for it."""
        self._apart.pop(key, None)
        self._common.add(key)
        yield from self.over()

    def over(self) -> Iterator[bytes]:
        """Yields those for which there is no room."""
        while self._apart and len(self._common) + len(self._apart) > self._most:
            yield self._apart.popitem(last=False)[0]

    def forgotten(self, key: bytes) -> None:
        """The driver has no use for it any more."""
        self._common.discard(key)


class SharedBlocks:
    """``store``: of the runner. ``files``: where there are any."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self.files: BlockFiles | None = None
        self.kept = KeptFiles()

    def close(self) -> None:
        """Leave the files to those who come next."""
        if self.files is not None:
            self.files.close()

    def prepare(self, batch: Batch) -> None:
        """Do what ``batch`` says is to be done before it."""
        for each in batch.kept:
            self.store.keep(each.sequence, each.place, each.block)
            if each.key and self.files is not None and self.files.has_room:
                for gone in self.kept.written(each.key):
                    self.files.forget(gone)
                self.files.write(each.key, self.store.read_block(each.block))
        for sequence in batch.released:
            self.store.release(sequence)
        for span in batch.spans:
            if span.blocks:
                self.store.adopt(span.sequence, list(span.blocks), span.known)
        for block in batch.dropped:
            self.store.drop(block)
        for key in batch.forgotten:
            if self.files is not None:
                self.kept.forgotten(key)
                self.files.forget(key)

    def read(self, batch: Batch, world: Group) -> int:
        """Read the blocks of a batch of `Kind.READ` that has been run; all ranks call it, with nothing else under way.
        Returns how many of them, from the first on, every rank has; it has dropped the others."""
        count = 0
        for each in batch.read:
            data = None if self.files is None else self.files.read(each.key)
            if data is None:
                break
            self.store.write_block(each.block, data)
            count += 1
        common = np.array([count], dtype=np.int64)
        world.all_reduce(common, op="min", timeout=STEP_TIMEOUT)
        for each in batch.read[int(common[0]) : count]:
            self.store.drop(each.block)
        return int(common[0])


def read_blocks(shared: SharedBlocks | None, batch: Batch, world: Group) -> int:
    """See `SharedBlocks.read`."""
    assert shared is not None  # else no batch says so
    return shared.read(batch, world)


def open_index(
    world: Group, options: RankOptions, shared: SharedBlocks | None, about: str, *, copies: bool
) -> PrefixIndex:
    """The index of all ranks, which call it together, with what they have on disk. ``shared``: None where some rank
    cannot share; ``copies``: as of `Trial`. ``about``: what else than the options decides what a block's numbers are.
    """
    if shared is None or not options.prefix_cache:
        return PrefixIndex(enabled=False)
    most_tokens = options.prefix_tokens
    if not options.prefix_disk:
        return PrefixIndex(copies=copies, most=most_tokens)
    shared.files = _open(options, world.rank, shared.store.block_bytes, about)
    count = options.prefix_disk // max(1, shared.store.block_bytes)
    found = [] if shared.files is None else shared.files.found()
    stored = [key.hex() for key in found[-_TOLD:]]
    told = tell_all(world, (shared.files is not None, count, stored), STEP_TIMEOUT)
    if not all(open_ for open_, _, _ in told):
        if shared.files is not None:
            shared.files.close()
            shared.files = None
        return PrefixIndex(copies=copies, most=most_tokens)
    common = set(stored).intersection(*(keys for _, _, keys in told))
    assert shared.files is not None  # all have
    most = min(count for _, count, _ in told)
    shared.kept = KeptFiles(found, {bytes.fromhex(key) for key in common}, count)
    for key in shared.kept.over():
        shared.files.forget(key)
    of_driver = told[options.plan.driver][2]
    known = [bytes.fromhex(key) for key in of_driver if key in common]
    return PrefixIndex(copies=copies, most=most_tokens, disk=most, stored=known)


def _open(options: RankOptions, rank: int, block_bytes: int, about: str) -> BlockFiles | None:
    """This rank's files, where it can have any. Another model, split or format has others."""
    kept = (options.dtype, options.weights, options.kv_cache)
    told = (options.identity or options.directory, *kept, options.plan.stages, about)
    name = blake2b(msgspec.json.encode(told), digest_size=16).hexdigest()
    try:
        root = cache_directory() / FOLDER / f"rank-{rank}"  # ranks of one host start at once: none clears up another's
        make_room(root, root / name, options.prefix_disk)
        return BlockFiles(root / name, block_bytes)
    except BlockingIOError:
        log.warning("another rank uses %s: the prefix cache is kept in memory only", root / name)
    except (OSError, RuntimeError) as error:
        log.warning("the prefix cache is kept in memory only: %s", error)
    return None
