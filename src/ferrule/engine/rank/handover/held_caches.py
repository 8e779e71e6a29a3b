"""Blocks of the caches that ranks hold while a model moves, for those that go on with it: copies, in memory of their
own, so that weights, caches and groups of ranks can end meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ferrule.engine.rank.batch import Holding
from ferrule.engine.rank.handover.parts import Delivery, Held
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.shards.messages import tell_all
from ferrule.fabric import Group
from ferrule.plan import BLOCK_PAGES
from ferrule.process.memory import memory_free

HOLD_TIMEOUT = 60.0
"""Seconds in which a rank says or sends what others wait for."""
MOST_BLOCKS = 1 << 14
"""That are held: about a million tokens, and as many keys as fit into a message."""
FREE_PART = 2
"""Of the memory that is free on the fullest host the copies of all ranks take at most one part of so many."""
_BORROWER = -1
"""A sequence's number that no request has."""

Bytes = NDArray[np.uint8]


class Layout(msgspec.Struct, frozen=True):
    """Of the parts that a rank has."""

    parts: tuple[Held, ...]


@dataclass
class Part:
    """What ``held`` says, of all blocks: (blocks, pages of a block, heads, bytes)."""

    held: Held
    data: Bytes


@dataclass
class HeldCaches:
    """``parts``: of the blocks that ``holding`` tells of. ``form``: in what they are kept, of the whole model."""

    holding: Holding
    parts: list[Part]
    form: str

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.data.nbytes for part in self.parts)

    def of(self, delivery: Delivery, first: int, count: int) -> Bytes:
        """What ``delivery`` is of blocks ``first`` and on, block after block."""
        for part in self.parts:
            begin = delivery.first - part.held.first
            if part.held.layer == delivery.layer and 0 <= begin <= part.held.heads - delivery.heads:
                found = part.data[first : first + count, :, begin : begin + delivery.heads]
                return np.ascontiguousarray(found).reshape(-1)
        raise KeyError(f"{delivery} is not held here")


def form_of(runner: StepRunner) -> str:
    """Two ranks of one form keep a head of a layer in the same bytes."""
    return f"{runner.dtype} {runner.options.kv_cache}"


def hold(runner: StepRunner, holding: Holding) -> HeldCaches:
    """Copy what ``holding`` tells of, as far as there is memory; all ranks call it. A rank that leaves sends its part
    to one that stays. Raises the fabric's errors."""
    world, program = runner.world, runner.program
    told = tell_all(world, (program.block_bytes, memory_free()[0]), HOLD_TIMEOUT)
    of_block = sum(size for size, _ in told)
    count = min(len(holding.blocks), MOST_BLOCKS, min(free for _, free in told) // FREE_PART // max(1, of_block))
    kept = Holding(
        holding.blocks[:count], holding.keys[:count], holding.parents[:count], min(count, holding.needed),
        holding.leaving,
    )  # fmt: skip
    program.adopt(_BORROWER, list(kept.blocks))
    try:
        parts = [_copied(runner, place, held, count) for place, held in enumerate(runner.held)]
    finally:
        program.release(_BORROWER)
    return HeldCaches(kept, _gathered(world, holding.leaving, parts, count), form_of(runner))


def _copied(runner: StepRunner, place: int, held: Held, count: int) -> Part:
    data = np.empty(count * held.heads * held.size, dtype=np.uint8)
    if count:
        runner.program.copy_part(_BORROWER, 0, count, (place, 0, held.heads), data)
    return Part(held, _shaped(data, held, count))


def _shaped(data: Bytes, held: Held, count: int) -> Bytes:
    return data.reshape(count, BLOCK_PAGES, held.heads, held.size // BLOCK_PAGES)


def _gathered(world: Group, leaving: Sequence[int], parts: list[Part], count: int) -> list[Part]:
    """Parts of this rank and of those that leave and sent theirs here."""
    if not (leaving and count):
        return parts
    layouts = tell_all(world, Layout(tuple(part.held for part in parts)), HOLD_TIMEOUT)
    staying = [rank for rank in range(world.size) if rank not in leaving]
    for place, rank in enumerate(leaving):
        to = staying[place % len(staying)]
        if rank == world.rank:
            for part in parts:
                world.send(part.data.reshape(-1), to, timeout=HOLD_TIMEOUT)
        elif to == world.rank:
            for held in layouts[rank].parts:
                data = np.empty(count * held.heads * held.size, dtype=np.uint8)
                world.recv(data, rank, timeout=HOLD_TIMEOUT)
                parts.append(Part(held, _shaped(data, held, count)))
    return [] if world.rank in leaving else parts
