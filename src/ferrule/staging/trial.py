"""Trial of a device's visible memory: whether both sides see what the other wrote, and use it sooner than a copy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ferrule.staging.visible import VisibleMemory

_ELEMENTS = 16 << 10
"""Of float32: a message of tensor parallelism."""
_ROUNDS = 15


class TriedDevice(Protocol):
    """The part of a `Copier` that is needed here."""

    torch_device: torch.device

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor: ...
    def record(self) -> Any: ...


def objection(memory: VisibleMemory, device: TriedDevice, clock: Callable[[], float] = time.perf_counter) -> str:
    """Why ``memory`` is not to be used in place; empty where it is. ``clock`` in seconds."""
    with memory.making():
        values = torch.arange(_ELEMENTS, dtype=torch.float32, device=device.torch_device) + 1
    seen = memory.view(values)
    if seen is None:
        return "the host does not see it"
    device.record().synchronize()
    numbers = torch.arange(_ELEMENTS, dtype=torch.float32)
    if not torch.equal(seen, numbers + 1):
        return "the host sees other values in it than the device wrote"
    seen.copy_(numbers)
    if not torch.equal((values * 2).cpu(), numbers * 2):
        return "the device sees other values in it than the host wrote"
    apart = torch.zeros(_ELEMENTS, device=device.torch_device)
    in_place = _seconds(lambda: _exchanged(device, values, seen), clock)
    copied = _seconds(lambda: _exchanged(device, apart, None), clock)
    if in_place > copied:
        return f"an exchange took {in_place * 1e6:.0f} µs in place, {copied * 1e6:.0f} µs with copies"
    return ""


def _exchanged(device: TriedDevice, values: Tensor, seen: Tensor | None) -> None:
    """What a collective does with ``values``, which are computed before and used after it."""
    values.add_(1)
    host = device.pinned(tuple(values.shape), values.dtype).copy_(values, non_blocking=True) if seen is None else seen
    device.record().synchronize()
    host.add_(1)
    if seen is None:
        values.copy_(host, non_blocking=True)
    values.add_(1)
    device.record().synchronize()


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = clock()
        call()
        times.append(clock() - start)
    return statistics.median(times)
