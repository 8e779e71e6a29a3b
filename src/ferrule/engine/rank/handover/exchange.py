"""Caches that some ranks hold go over to those that go on with the model, whatever both splits are.

All ranks of a group call it at once: those that hold something, those that need it, and those that are both. It goes in
rounds of some blocks each, which all time together: where a block takes longer to come than its tokens take to compute,
what is left is computed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.handover.held_caches import Bytes, HeldCaches, form_of
from ferrule.engine.rank.handover.parts import Delivery, Held, deliveries
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.shards.messages import tell_all
from ferrule.errors import EngineError
from ferrule.fabric import Group

TAKE_TIMEOUT = 20.0
"""Seconds for one message, and in which the slowest rank must have done its part of a round."""
MOST_BYTES = 64 << 20
"""That come in a round, of all ranks together."""
OTHERS_SECONDS = 1.0
"""That are spent on blocks which no sequence needs now."""
FIRST_BLOCK = 1 << 32
"""Number of the first block that has come: the driver gives none so high."""
_GROWTH = 4
"""Rounds grow by as much, from one block on: the first ones show how quick the cables are."""
_TRIED = 2
"""Rounds before it is decided by their time; the first has what a first message takes."""


class Told(msgspec.Struct, frozen=True):
    """What a rank says of itself. ``parts``: that it holds, of the blocks of ``keys`` (and so on: as of `Holding`).
    ``needs``: what it has to get, None where it only holds; ``room``: blocks that it has room for;
    ``token_seconds``: of computing a token of a prompt. ``form``: as of `form_of`."""

    form: str
    parts: tuple[Held, ...] = ()
    keys: tuple[bytes, ...] = ()
    parents: tuple[int, ...] = ()
    needed: int = 0
    needs: tuple[Held, ...] | None = None
    room: int = 0
    token_seconds: float = 0.0


@dataclass
class Taker:
    """A rank that goes on, and what it says. ``room`` and ``token_seconds``: as of `Told`."""

    runner: StepRunner
    room: int
    token_seconds: float
    needs: tuple[Held, ...] = ()

    def __post_init__(self) -> None:
        self.needs = tuple(self.runner.held)


@dataclass
class Exchange:
    """``held``: what this rank holds, ``taker``: where it goes on; one of both may be missing. What has become of it is
    there also where `run` raises: ``keys`` and ``parents``: of the blocks, of which the first ``done`` have come here.
    ``size``: bytes that all ranks got; ``reason``: why no more came."""

    held: HeldCaches | None
    taker: Taker | None
    keys: tuple[bytes, ...] = ()
    parents: tuple[int, ...] = ()
    needed: int = 0
    done: int = 0
    size: int = 0
    seconds: float = 0.0
    token_seconds: float = 0.0
    reason: str = ""
    _opened: int = 0
    _deliveries: list[Delivery] = field(default_factory=list)  # in ranks of the group
    _sizes: dict[int, int] = field(default_factory=dict)  # bytes of a block of a head, by layer

    def run(self, group: Group) -> None:
        """Raises the fabric's errors, and `EngineError` where ranks do not fit together."""
        self._plan(tell_all(group, self._told(), TAKE_TIMEOUT))
        of_block = sum(each.heads * self._sizes[each.layer] for each in self._deliveries)
        most = max(1, MOST_BYTES // max(1, of_block))
        count, rounds, spent_on_others = 1, 0, 0.0
        while self.done < len(self.keys):
            others = self.done >= self.needed
            left = (len(self.keys) if others else self.needed) - self.done
            count, rounds = min(left, count, most), rounds + 1
            seconds = self._round(group, self.done, count)
            self.done, self.size, self.seconds = self.done + count, self.size + count * of_block, self.seconds + seconds
            if rounds >= _TRIED and self._is_dear(seconds / count, of_block):
                return
            spent_on_others += seconds * others
            if spent_on_others > OTHERS_SECONDS:
                return
            count *= _GROWTH

    def keep(self, count: int) -> None:
        """Of the blocks that have come here all ranks have ``count``: drop the others, and those that came by half."""
        self.done = count
        if self.taker is not None:
            for place in range(count, self._opened):
                self.taker.runner.program.drop(FIRST_BLOCK + place)

    def _told(self) -> Told:
        held, taker = self.held, self.taker
        if held is not None:
            form, holding = held.form, held.holding
            parts = tuple(part.held for part in held.parts)
            told = Told(form, parts, holding.keys, holding.parents, holding.needed)
        else:
            assert taker is not None
            told = Told(form_of(taker.runner))
        if taker is None:
            return told
        rest = {"room": taker.room, "token_seconds": taker.token_seconds}
        return msgspec.structs.replace(told, needs=taker.needs, **rest)

    def _plan(self, told: Sequence[Told]) -> None:
        """Who sends what to whom. Raises `EngineError`."""
        if len({each.form for each in told}) > 1:
            raise EngineError(f"caches are kept in different forms: {', '.join(sorted({each.form for each in told}))}")
        holders = [rank for rank, each in enumerate(told) if each.parts]
        takers = [rank for rank, each in enumerate(told) if each.needs is not None]
        if not holders or not takers:
            self.reason = "nothing was held"
            return
        own = [holders.index(rank) if rank in holders else None for rank in takers]
        needs = [each.needs for each in told if each.needs is not None]
        found = deliveries([told[rank].parts for rank in holders], needs, own)
        self._deliveries = [each._replace(source=holders[each.source], to=takers[each.to]) for each in found]
        self._sizes = {held.layer: held.size for each in told for held in each.parts}
        source, room = told[holders[0]], min(told[rank].room for rank in takers)
        count = min(len(source.keys), room)
        self.keys, self.parents, self.needed = source.keys[:count], source.parents[:count], min(count, source.needed)
        self.token_seconds = max(each.token_seconds for each in told)
        if count < source.needed:
            self.reason = f"there is room for {count * BLOCK:,} tokens only"

    def _round(self, group: Group, first: int, count: int) -> float:
        """Have ``count`` blocks come from block ``first`` on; all ranks go through what is sent in the same order, so
        that none waits for one that waits for it. Returns the seconds of the slowest."""
        begun = time.monotonic()
        self._open(first + count)
        for each in self._deliveries:
            if group.rank == each.source:
                assert self.held is not None
                data = self.held.of(each, first, count)
                if each.to == each.source:
                    self._put(each, first, count, data)
                else:
                    group.send(data, each.to, timeout=TAKE_TIMEOUT)
            elif group.rank == each.to:
                data = np.empty(count * each.heads * self._sizes[each.layer], dtype=np.uint8)
                group.recv(data, each.source, timeout=TAKE_TIMEOUT)
                self._put(each, first, count, data)
        spent = np.array([int(1e6 * (time.monotonic() - begun))], dtype=np.int64)
        group.all_reduce(spent, op="max", timeout=TAKE_TIMEOUT)
        return float(spent[0]) / 1e6

    def _open(self, count: int) -> None:
        """Have pages for the first ``count`` blocks."""
        if self.taker is not None:
            for place in range(self._opened, count):
                self.taker.runner.program.open_block(FIRST_BLOCK + place)
            self._opened = count

    def _put(self, delivery: Delivery, first: int, count: int, data: Bytes) -> None:
        assert self.taker is not None
        place = delivery.layer - self.taker.needs[0].layer
        part = place, delivery.first - self.taker.needs[place].first, delivery.heads
        begin = FIRST_BLOCK + first
        self.taker.runner.program.put_part(list(range(begin, begin + count)), part, data)

    def _is_dear(self, seconds: float, size: int) -> bool:
        """Whether no more is to come, where the last blocks, of so many bytes, took ``seconds`` each."""
        computing = BLOCK * self.token_seconds
        if seconds < computing:
            return False
        if self.done < self.needed:
            self.reason = (
                f"{BLOCK} tokens take {1e3 * computing:.1f} ms to compute, and {1e3 * seconds:.1f} ms to come "
                f"({size / seconds / 1e6:.0f} MB/s)"
            )
        return True
