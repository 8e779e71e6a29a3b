"""Prompts that other ranks compute: until their blocks have come they wait beside the scheduler, which then begins
them with these, as with blocks of earlier prompts. What does not come is computed here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from ferrule.engine.messages import Add, Event, Received, Wanted
from ferrule.engine.rank.batch import Batch, Kind, Opened, Read
from ferrule.engine.rank.cache.held import HeldBlocks
from ferrule.engine.rank.cache.prefix import BLOCK, PrefixIndex, root_key
from ferrule.engine.rank.handover.end import HandOverEnd
from ferrule.engine.rank.sampling.constrained import Matcher

LEAST = 2
"""Blocks of a prompt that are not known, from which on others compute it: here it is begun at once."""
PATIENCE = 2.0
"""Seconds without any block, and twice what computing the prompt here would take, after which it is computed here."""
LOOK_PERIOD = 0.002
"""Seconds between the looks at whether other ranks of this group have what this one has."""


@dataclass
class Awaited:
    """A request whose prompt's blocks ``first`` and on are computed elsewhere. ``held``: its keys, and the blocks that
    were here already. ``blocks``: those that come, once there is room for them. ``came``: of these so many. ``over``:
    no more come."""

    order: Add
    matcher: Matcher | None
    held: HeldBlocks
    keys: list[bytes]
    blocks: tuple[Read, ...] = ()
    first: int = 0
    came: int = 0
    over: bool = False


@dataclass
class Awaiting:
    """Requests in the order in which they came. ``report``: tells the process that started the ranks."""

    end: HandOverEnd
    prefixes: PrefixIndex
    report: Callable[[Event], None]
    clock: Callable[[], float] = time.monotonic
    requests: dict[int, Awaited] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    """Those of which the ranks are to take nothing more; they have to be told before blocks are dropped."""
    _moved: float = 0.0  # when a block came last, of any
    _looked: float = 0.0
    _short: int = -1  # tokens that there was room for, or could be made for, when that was too little

    def take(self, order: Add, matcher: Matcher | None, about: str) -> bool:
        """Whether the prompt of ``order`` is computed elsewhere: it is if enough of it is unknown here. ``about``: as
        of `Scheduler.add`."""
        if not self.end.number or order.images or order.params.prompt_logprobs is not None:
            return False
        held = HeldBlocks(root_key(about, long=False))
        keys = held.keys_of(order.prompt, (len(order.prompt) - 1) // BLOCK)
        known = sum(1 for _ in takewhile(lambda key: key in self.prefixes.blocks or key in self.prefixes.stored, keys))
        if len(keys) - known < LEAST:
            return False
        self.requests[order.id] = Awaited(order, matcher, held, keys)
        self._short = -1
        return True

    def give_up(self, request: int) -> None:
        """No more blocks come for it."""
        if request in self.requests:
            self.requests[request].over = True

    def cancel(self, request: int) -> None:
        found = self.requests.pop(request, None)
        if found is not None and found.blocks:
            self._close(found, 0)

    def local(self, *, idle: bool) -> Iterator[Awaited]:
        """Take out those that nothing was asked for, and never will be. ``idle``: nothing runs whose end would make
        room."""
        waiting = idle and self._short >= 0 and not any(each.blocks for each in self.requests.values())
        for number, each in list(self.requests.items()):
            if not each.blocks and (each.over or waiting or not self.end.number):
                waiting = False
                yield self.requests.pop(number)

    def due(self, room: int) -> bool:
        """Whether `next_batch` has something to do. ``room``: tokens that the caches could hold beside others."""
        unasked = any(not (each.blocks or each.over) for each in self.requests.values())
        if unasked and self.end.number and room + self.prefixes.unused > self._short:
            return True
        whole, late = self._to_count()
        return bool(late) or (bool(whole) and self.clock() - self._looked >= LOOK_PERIOD)

    def next_batch(self, room: int) -> Batch:
        """What all ranks are to do for hand-overs now: take pages for prompts, as far as there is ``room``, and count
        blocks; a batch of `Kind.RECEIVE`, without orders."""
        counted = list(dict.fromkeys(number for some in self._to_count() for number in some))
        self._looked = self.clock()
        opened: list[Opened] = []
        for number, each in self.requests.items():
            if each.blocks or each.over or not self.end.number:
                continue
            each.held.blocks = self.prefixes.match(each.keys)
            found = self.prefixes.expect(each.keys, room)
            if found is None:
                each.held.blocks, self._short = [], room + self.prefixes.unused
                break
            self.prefixes.begin(each.held.blocks)
            each.first, each.blocks, self._moved = len(each.held.blocks), found, self.clock()
            room -= BLOCK * len(found)
            opened.append(Opened(number, each.first, tuple(block.block for block in found)))
        return Batch(kind=Kind.RECEIVE, opened=tuple(opened), counted=tuple(counted))

    def _to_count(self) -> tuple[list[int], list[int]]:
        """Requests all of whose blocks have come on this rank, and those that are waited for no longer."""
        asked = {number: each for number, each in self.requests.items() if each.blocks}
        now = self.clock()
        whole = []
        for number, each in asked.items():
            came = self.end.inbox.came(number)
            if came > each.came:
                each.came, self._moved = came, now
            if came == len(each.blocks):
                whole.append(number)
        return whole, [number for number, each in asked.items() if self._late(each, now)]

    def _late(self, each: Awaited, now: float) -> bool:
        here = self.prefixes.costs.block * len(each.blocks)
        return each.over or not self.end.number or now - self._moved > PATIENCE + 2 * here

    def counted(self, batch: Batch, counts: list[int]) -> Iterator[Awaited]:
        """The ranks have done ``batch``, of `next_batch`: ask for the prompts that it opened, and take out those that
        can begin now. ``counts``: of the blocks that every rank has."""
        for opened in batch.opened:
            last = opened.first + len(opened.blocks)
            self.report(Wanted(opened.request, opened.first, last, self.end.number))
        now = self.clock()
        for number, count in zip(batch.counted, counts, strict=True):
            each = self.requests[number]
            if count == len(each.blocks) or self._late(each, now):
                del self.requests[number]
                self._close(each, count)
                yield each

    def _close(self, each: Awaited, count: int) -> None:
        self.closed.append(each.order.id)
        parent = each.held.blocks[-1] if each.held.blocks else None
        self.prefixes.have_come(each.blocks, parent, count)
        each.held.end(self.prefixes)
        self.report(Received(each.order.id, count, len(each.blocks)))
