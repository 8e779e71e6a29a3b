"""Memory that is lent to a device is kept until the device is done with it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import torch

from ferrule.staging.host_memory import LentMemory


@dataclass
class Event:
    happened: bool = False

    def query(self) -> bool:
        return self.happened


@dataclass
class Queue:
    events: list[Event] = field(default_factory=list)

    def record(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


def test_memory_that_was_dropped_is_kept_until_the_device_is_done() -> None:
    queue = Queue()
    lent = LentMemory(queue.record)
    whole = lent.empty((2, 3), torch.bfloat16).fill_(7)
    assert (whole.shape, whole.dtype, whole.is_contiguous()) == ((2, 3), torch.bfloat16, True)
    part = whole[1]
    del whole
    gc.collect()
    assert queue.events == [], "a view holds it"
    del part
    gc.collect()
    assert len(queue.events) == len(lent._dropped) == 1
    assert torch.from_numpy(lent._dropped[0][1]).view(torch.bfloat16).tolist() == [7] * 6
    other = lent.empty((0,), torch.int64)
    assert other.shape == (0,)
    assert len(lent._dropped) == 1, "the device may still read it"
    queue.events[0].happened = True
    lent.empty((4,), torch.int8)
    assert not any(event is queue.events[0] for event, _ in lent._dropped)
