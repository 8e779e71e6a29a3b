"""``torch.emulated``: what torch asks of a device's module, with the streams and events of the emulated accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.engine.devices.emulated.machine import Machine, machine
from ferrule.engine.devices.emulated.timeline import Event as Point
from ferrule.engine.devices.emulated.timeline import Stream as Queue


class Event:
    """An event of torch's kind: it is made before it is recorded, and may be recorded again."""

    def __init__(self, **_: object) -> None:
        self._point: Point | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._point = (stream or current_stream()).queue.record()

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        if self._point is not None:
            self._point.synchronize()

    def query(self) -> bool:
        return self._point is None or self._point.happened


class Stream:
    """A stream of torch's kind. ``queue``: the work given to it, of a stream that is there; else a new one."""

    def __init__(self, device: object = None, priority: int = 0, *, queue: Queue | None = None) -> None:
        self.queue = _machine().timeline.stream() if queue is None else queue

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        if event._point is not None:
            self.queue.after(event._point)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return id(self.queue)


def current_stream(device: object = None) -> Stream:
    return Stream(queue=_machine().timeline.current)


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    """Give work to ``chosen`` meanwhile."""
    timeline = _machine().timeline
    before, timeline.current = timeline.current, timeline.current if chosen is None else chosen.queue
    try:
        yield
    finally:
        timeline.current = before


class Module:
    """The module itself. A process of torch's uses one of the accelerators there, the first."""

    Event, Stream = Event, Stream
    current_stream, stream = staticmethod(current_stream), staticmethod(stream)

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def synchronize(self, device: object = None) -> None:
        _machine().timeline.wait_for_all()

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are made by the host."""


def _machine() -> Machine:
    return machine(0)
