"""Receiving end of a hand-over, on a rank that computes answers: what comes is put into the pages of its cache at once.

Pages are taken before a prompt is asked for, by the rank's own thread; the thread that receives only fills them, so
that steps go on meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ferrule.engine.rank.handover.header import FIELDS, Header, Kind
from ferrule.engine.rank.handover.parts import Delivery, Held
from ferrule.engine.rank.handover.store import PartStore
from ferrule.errors import FabricError
from ferrule.fabric import Group

RECEIVE_TIMEOUT = 120.0
"""Seconds in which something comes, and be it the word that there is nothing to send."""
MOST_BYTES = 1 << 31
"""Of a message: more is no part of a prompt's piece."""


@dataclass
class Incoming:
    """Blocks that are expected of a request, from its block ``first`` on. ``parts``: of each, the layers and heads that
    have come."""

    first: int
    blocks: Sequence[int]
    parts: list[set[tuple[int, int]]]
    complete: int = 0
    """Blocks that have come whole, from the first on."""


@dataclass
class Inbox:
    """``held``: of this rank. All but `receive_all` is called by the rank's own thread."""

    store: PartStore
    held: Sequence[Held]
    _expected: dict[int, Incoming] = field(default_factory=dict)
    _parts: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect_from(self, deliveries: Sequence[Delivery]) -> None:
        """What one prompt's blocks consist of, when they come to this rank."""
        places = {each.layer: (place, each.first) for place, each in enumerate(self.held)}
        with self._lock:
            self._parts = {
                (each.layer, each.first): (places[each.layer][0], each.first - places[each.layer][1], each.heads)
                for each in deliveries
            }

    def open(self, request: int, first: int, blocks: Sequence[int]) -> None:
        """Take pages for ``blocks``, which hold the blocks of ``request`` from ``first`` on."""
        for block in blocks:
            self.store.open_block(block)
        with self._lock:
            self._expected[request] = Incoming(first, blocks, [set() for _ in blocks])

    def came(self, request: int) -> int:
        """How many of its blocks have come, from the first one on."""
        with self._lock:
            return self._expected[request].complete if request in self._expected else 0

    def close(self, request: int) -> None:
        """Take nothing more of it."""
        with self._lock:
            self._expected.pop(request, None)

    def receive_all(self, group: Group) -> None:
        """Until the group ends. Raises the fabric's errors."""
        while True:
            numbers = np.zeros(FIELDS, dtype=np.int64)
            work = group.recv(numbers, None, timeout=RECEIVE_TIMEOUT, blocking=False)
            work.wait()
            source, header = work.source, Header.of(numbers.tolist())
            if header.kind is Kind.END:
                header.send(group, source, RECEIVE_TIMEOUT)
            elif header.kind is Kind.PART:
                if header.size > MOST_BYTES:
                    raise FabricError(f"rank {source} of the hand-over announced {header.size:,} bytes")
                data = np.empty(header.size, dtype=np.uint8)
                group.recv(data, source, timeout=RECEIVE_TIMEOUT)
                self._take(header, data)

    def _take(self, header: Header, data: np.typing.NDArray[np.uint8]) -> None:
        part = self._parts.get((header.layer, header.first))
        if part is None or header.size != header.blocks * self.store.part_bytes(part):
            raise FabricError(f"a hand-over brought what this rank does not hold: {header}")
        with self._lock:
            expected = self._expected.get(header.request)
            if expected is None:
                return
            begin = header.place - expected.first
            if not 0 <= begin <= begin + header.blocks <= len(expected.blocks):
                raise FabricError(f"a hand-over brought blocks that were not asked for: {header}")
            self.store.put_part(list(expected.blocks[begin : begin + header.blocks]), part, data)
            for parts in expected.parts[begin : begin + header.blocks]:
                parts.add((header.layer, header.first))
            whole = [len(parts) == len(self._parts) for parts in expected.parts]
            expected.complete = whole.index(False) if False in whole else len(whole)
