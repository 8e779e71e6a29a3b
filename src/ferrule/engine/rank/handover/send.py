"""Sending end of a hand-over, on a rank that computes prompts: each layer's blocks go while the next is computed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ferrule.engine.messages import Hand
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.cache.prefix import BLOCK
from ferrule.engine.rank.handover.header import Header, Kind
from ferrule.engine.rank.handover.parts import Delivery, Held
from ferrule.engine.rank.handover.store import PartStore
from ferrule.errors import FabricError
from ferrule.fabric import Group

QUEUE_BYTES = 256 << 20
"""That may wait to be sent: where a cable is slower than that, computing waits for it."""
SEND_TIMEOUT = 60.0
"""Seconds for one message, and in which the other end must say that all of a prompt has come."""
ALIVE_SECONDS = 30.0
"""After so many without anything to send, the other end is told that this one is there."""

Bytes = NDArray[np.uint8]


class Sent(NamedTuple):
    """What became of a prompt. ``seconds``: from the first message to the other ends' word that all had come;
    ``behind``: how many of these were after the last layer was computed."""

    request: int
    size: int
    seconds: float
    behind: float


class Piece(NamedTuple):
    """Blocks ``first`` up to ``last`` (not included) of a sequence, of which the last of the prompt is one if it is
    ``final``."""

    hand: Hand
    sequence: int
    first: int
    last: int
    final: bool


class Message(NamedTuple):
    """``data``: None at the end of a prompt, whose last layer was computed at time ``computed``."""

    to: int
    header: Header
    data: Bytes | None
    computed: float = 0.0


@dataclass
class Progress:
    """Of a prompt that is being sent: when that began, and its bytes so far."""

    begun: float
    size: int = 0


@dataclass
class Outbox:
    """What the rank sends, by a thread of its own: the one that calls `send_all`. ``deliveries``: of this rank; ``to``
    counts the ranks of ``group``. ``number``: of that. ``on_sent``: called for each prompt."""

    number: int
    group: Group
    store: PartStore
    held: Sequence[Held]
    deliveries: Sequence[Delivery]
    on_sent: Callable[[Sent], None] = lambda sent: None
    _next: dict[int, int] = field(default_factory=dict)  # block, by sequence
    _waiting: deque[Message] = field(default_factory=deque)
    _size: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def pieces(self, batch: Batch) -> list[Piece]:
        """Blocks that will be complete when ``batch`` is computed, and those that a sequence begins with."""
        for sequence in batch.released:
            self._next.pop(sequence, None)
        found = []
        for handed in batch.handed:
            span = batch.spans[handed.span]
            hand = handed.hand
            first = self._next.get(span.sequence, hand.first)
            last = min((span.seen + span.tokens) // BLOCK, hand.last)
            final = last == hand.last
            if hand.number != self.number or last <= first or (hand.whole and not final):
                continue
            self._next[span.sequence] = last
            found.append(Piece(hand, span.sequence, first, last, final))
        return found

    def layer(self, place: int, pieces: Sequence[Piece]) -> None:
        """Layer ``place`` of this rank's is computed: send what it kept of ``pieces``. Waits where much is waiting."""
        computed, last = time.monotonic(), place == len(self.held) - 1
        for piece in pieces:
            if not piece.hand.whole:
                self._put_layer(place, piece)
            elif last:
                for each in range(len(self.held)):
                    self._put_layer(each, piece)
            if piece.final and last:
                for to in sorted({each.to for each in self.deliveries}):
                    self._put(Message(to, Header(Kind.END, piece.hand.request), None, computed))

    def _put_layer(self, place: int, piece: Piece) -> None:
        held, count = self.held[place], piece.last - piece.first
        for each in self.deliveries:
            if each.layer == held.layer:
                part = (place, each.first - held.first, each.heads)
                data = np.empty(count * self.store.part_bytes(part), dtype=np.uint8)
                self.store.copy_part(piece.sequence, piece.first, count, part, data)
                where = each.layer, each.first, piece.first, count
                self._put(Message(each.to, Header(Kind.PART, piece.hand.request, *where, data.nbytes), data))

    def close(self) -> None:
        """Send nothing any more. From any thread."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _put(self, message: Message) -> None:
        size = message.header.size
        with self._changed:
            fits = lambda: self._closed or not self._size or self._size + size <= QUEUE_BYTES  # noqa: E731
            self._changed.wait_for(fits, 2 * SEND_TIMEOUT)  # where nothing moves the thread that sends closes this
            if not self._closed:
                self._waiting.append(message)
                self._size += size
                self._changed.notify_all()

    def send_all(self) -> None:
        """Until `close`. Raises the fabric's errors."""
        under_way: dict[int, Progress] = {}
        ending: list[Message] = []
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting, ALIVE_SECONDS)
                if self._closed:
                    return
                message = self._waiting.popleft() if self._waiting else None
            if message is None:
                for to in {each.to for each in self.deliveries}:
                    Header(Kind.ALIVE).send(self.group, to, SEND_TIMEOUT)
                continue
            request = message.header.request
            progress = under_way.setdefault(request, Progress(time.monotonic()))
            message.header.send(self.group, message.to, SEND_TIMEOUT)
            if message.data is not None:
                self.group.send(message.data, message.to, timeout=SEND_TIMEOUT)
                progress.size += message.data.nbytes
                with self._changed:
                    self._size -= message.data.nbytes
                    self._changed.notify_all()
                continue
            ending.append(message)
            if len(ending) < len({each.to for each in self.deliveries}):
                continue
            for each in ending:
                self._await_word(each)
            now = time.monotonic()
            del under_way[request]
            ending.clear()
            begun = min(progress.begun, message.computed)  # a thread may come late to its first message
            self.on_sent(Sent(request, progress.size, now - begun, now - message.computed))

    def _await_word(self, message: Message) -> None:
        """That all of a prompt has come."""
        found = Header.receive(self.group, message.to, SEND_TIMEOUT)
        if (found.kind, found.request) != (Kind.END, message.header.request):
            raise FabricError(f"rank {message.to} of the hand-over answered {found} to {message.header}")
