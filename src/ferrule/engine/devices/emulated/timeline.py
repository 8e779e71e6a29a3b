"""Streams of an emulated accelerator: work that is given to them is done late, in order within each, and between
them only as events say.

Nothing runs when it is started. What runs is decided when the host waits: only what that wait asks for, the latest
possible; or, with a ``seed``, parts of other streams before, chosen at random. So code that leaves out an event or a
wait reads memory that nothing was written to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

Work = Callable[[], None]


class Event:
    """A point in one stream's work. `synchronize` is the host's wait for it."""

    def __init__(self, timeline: Timeline, stream: Stream) -> None:
        self._timeline, self.stream = timeline, stream
        self.happened = False

    def synchronize(self) -> None:
        self._timeline.wait_for(self)


class Stream:
    """Work in the order in which it was started."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.waiting: deque[Work | Event | tuple[Event]] = deque()
        """Work to do; an event of this stream to mark; or (in a tuple) one of another stream to wait for."""

    def record(self) -> Event:
        """An event that happens when all that was started here before is done."""
        event = Event(self._timeline, self)
        self.waiting.append(event)
        return event

    def after(self, event: Event) -> None:
        """Make all that is started here from now on wait for ``event``."""
        self.waiting.append((event,))


class Timeline:
    """All streams of one device. ``waits``: how often the host waited. ``may_wait``: raises where it must not."""

    def __init__(self, seed: int | None = None, may_wait: Callable[[str], None] = lambda why: None) -> None:
        self._may_wait = may_wait
        self._random = None if seed is None else random.Random(seed)
        self.default = Stream(self)
        self.streams = [self.default]
        self.current = self.default
        self.waits = 0

    def stream(self) -> Stream:
        made = Stream(self)
        self.streams.append(made)
        return made

    def start(self, work: Work) -> None:
        """Give ``work`` to the current stream."""
        self.current.waiting.append(work)
        if self._random is not None and self._random.random() < 0.1:
            self._run_some()

    def wait_for(self, event: Event) -> None:
        self._may_wait("the host waits for an event")
        self.waits += 1
        while not event.happened:
            self._next(event.stream)

    def wait_for_all(self) -> None:
        self._may_wait("the host waits for the device")
        self.waits += 1
        for stream in self.streams:
            while stream.waiting:
                self._next(stream)

    def wait_for_current(self) -> None:
        self.wait_for(self.current.record())

    def catch_up(self) -> None:
        """Do all of the current stream's work, as a device may that the host does not wait for."""
        event = self.current.record()
        while not event.happened:
            self._next(event.stream)

    def _next(self, stream: Stream) -> None:
        """The next piece of ``stream``, after what that waits for."""
        if not stream.waiting:
            raise RuntimeError("the host waits for an event that no stream will ever reach")
        first = stream.waiting[0]
        if isinstance(first, tuple):
            (other,) = first
            while not other.happened:
                self._next(other.stream)
        stream.waiting.popleft()
        if isinstance(first, Event):
            first.happened = True
        elif not isinstance(first, tuple):
            first()

    def _run_some(self) -> None:
        """A piece of each of some streams, as a device does without being asked."""
        assert self._random is not None
        for stream in self._random.sample(self.streams, self._random.randint(1, len(self.streams))):
            first = stream.waiting[0] if stream.waiting else None
            if first is not None and not (isinstance(first, tuple) and not first[0].happened):
                self._next(stream)
