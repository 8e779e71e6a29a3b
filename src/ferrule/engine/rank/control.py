"""The rank's end of its control connection to the process that started it; `ferrule.engine.messages` travel on it.

The other end is `ferrule.engine.host.ranks`.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.engine.messages import LINE_LIMIT, Event, Here, Loading, Meet, Order, Start, decode_order, encode
from ferrule.engine.options import RankOptions
from ferrule.engine.types import Progress
from ferrule.errors import EngineError
from ferrule.process.lifeline import Lifeline

CHUNK = 1 << 16
MOST_CHUNKS = 1 << 8
MORE_MILLISECONDS = 1
"""A message that has begun, such as a piece of an image, is waited for, and so many chunks are taken between steps."""
SPARE_PERIOD = 60.0
"""Seconds between the looks of a standby rank at whether it is wanted; both the start and the end wake it at once."""


class Control:
    """``line``: to the process that started this one."""

    def __init__(self, line: Lifeline) -> None:
        self._line = line
        self._received = bytearray()
        self._early: list[Order] = []
        self._poll = select.poll()  # unlike select it takes descriptors of any number
        self._poll.register(line.socket, select.POLLIN)

    def send(self, event: Event) -> None:
        """Raises `EngineError` when the other end is gone."""
        try:
            self._line.send(encode(event))
        except OSError as error:
            raise EngineError(f"the process that started this rank is gone: {error}") from None

    @contextmanager
    def within(self, seconds: float, late: Event) -> Iterator[None]:
        """Send ``late`` where what is done inside takes longer."""
        timer = threading.Timer(seconds, self.send, [late])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def progress(self, progress: Progress) -> None:
        self.send(Loading(progress))

    def options(self) -> RankOptions:
        """Wait for what this rank is to do: as long as the process that started it lives, as it may be on standby."""
        order = self._next()
        if not isinstance(order, Start):
            raise EngineError(f"a rank that waits for its options was told to {order!r}")
        return order.options

    def meet(self) -> Meet:
        """Say that this rank has done its imports, and wait until all have: only then does their time to meet begin."""
        self.send(Here())
        order = self._next()
        if not isinstance(order, Meet):
            raise EngineError(f"a rank that waits for the others was told to {order!r}")
        return order

    def meet_anew(self, seconds: float) -> Meet:
        """Wait to be told to meet the others anew; what was ordered before is void. Raises `EngineError` where that
        does not come in time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for order in self.orders(left):
                if isinstance(order, Meet):
                    return order
        raise EngineError(f"this rank waited for {seconds:g} s to meet the others again")

    def _next(self) -> Order:
        while not self._early:
            self._early = self.orders(SPARE_PERIOD)
        return self._early.pop(0)

    def orders(self, wait: float) -> list[Order]:
        """Orders from above, after at most ``wait`` seconds. Raises `EngineError` when the other end is gone."""
        found: list[Order] = []
        if not self._poll.poll(wait * 1000):
            return found
        for _ in range(MOST_CHUNKS):
            chunk = self._line.socket.recv(CHUNK)
            if not chunk:
                raise EngineError("the process that started this rank is gone")
            found += self._taken(chunk)
            if not self._received or not self._poll.poll(MORE_MILLISECONDS):
                break
        return found

    def _taken(self, chunk: bytes) -> list[Order]:
        """The orders that end in ``chunk``, the next bytes to come."""
        self._received += chunk
        if b"\n" not in chunk:
            if len(self._received) > LINE_LIMIT:
                raise EngineError(f"a control message has more than {LINE_LIMIT:,} bytes")
            return []
        *lines, self._received = self._received.split(b"\n")
        return [decode_order(bytes(line)) for line in lines]
