"""The emulated accelerator itself: its memory, its streams, and what it has been asked to do."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ferrule.engine.device_names import EMULATED_MEMORY
from ferrule.engine.devices.emulated.timeline import Timeline

if TYPE_CHECKING:
    from ferrule.engine.devices.emulated.graphs import EmulatedGraph

_FLOAT_POISON, _BYTE_POISON = float("nan"), 0x5A


class LostDevice(torch.AcceleratorError):
    """The device is gone, as after an error that only a reset of it cures."""


class Machine:
    """``launches``, ``to_device``, ``to_host``: operations and copies so far; ``waits``: those of the host for the
    device, by their reason, beside events. ``memory`` in bytes; ``seed``: see `Timeline`. ``unified``: the host sees
    the memory, at its own risk: what the device has not done yet it does later. ``capturing``: the graph that takes
    what is started, if any."""

    def __init__(
        self, index: int, memory: int = EMULATED_MEMORY, seed: int | None = None, *, unified: bool = False
    ) -> None:
        self.index, self.memory, self.used, self.unified = index, memory, 0, unified
        self.timeline = Timeline(seed, self.refuse_in_capture)
        self.launches = self.to_device = self.to_host = 0
        self.waits: Counter[str] = Counter()
        self.capturing: EmulatedGraph | None = None
        self._lost = ""
        self._pinned: set[int] = set()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Launches, copies to the device and to the host."""
        return self.launches, self.to_device, self.to_host

    @counts.setter
    def counts(self, given: tuple[int, int, int]) -> None:
        self.launches, self.to_device, self.to_host = given

    def check(self) -> None:
        """Raise `LostDevice` if it is."""
        if self._lost:
            raise LostDevice(self._lost)

    def lose(self, why: str) -> None:
        """From now on every use of the device fails."""
        self._lost = f"emulated:{self.index}: {why}"
        for stream in self.timeline.streams:
            stream.waiting.clear()

    def fill(self) -> None:
        """From now on nothing more can be allocated beyond what is in use."""
        self.memory = self.used

    def start(self, work: Callable[[], object]) -> None:
        """Have ``work`` done on the current stream, some time."""

        def later() -> None:
            with torch.inference_mode():
                work()

        if self.capturing is not None:
            self.capturing.add(later)
        else:
            self.timeline.start(later)

    def wait(self, why: str) -> None:
        """The host waits for all that was started on the current stream."""
        self.refuse_in_capture(why)
        self.waits[why] += 1
        self.timeline.wait_for_current()

    def refuse_in_capture(self, why: str) -> None:
        """Raise where work is being captured."""
        if self.capturing is not None:
            self.capturing.refuse(why)

    def allocate(self, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A piece of the device's memory as a host tensor, poisoned. Raises `torch.OutOfMemoryError`."""
        self.check()
        extent = 0 if 0 in shape else 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        size = extent * dtype.itemsize
        if self.used + size > self.memory:
            raise torch.OutOfMemoryError(
                f"emulated:{self.index} out of memory: {size} bytes were asked for, {self.memory - self.used} of "
                f"{self.memory} are free"
            )
        if extent == 0:
            return torch.empty_strided(shape, strides, dtype=dtype)
        array = np.empty(size, np.uint8)
        self.used += size
        weakref.finalize(array, self._free, size)
        memory = poison(torch.from_numpy(array).view(dtype))
        cells = memory.as_strided(shape, strides)
        if self.capturing is not None:
            self.capturing.makes(cells)
        elif self.unified:  # work on what lay there before may still write
            self.start(lambda: poison(memory))
        return cells

    def _free(self, size: int) -> None:
        self.used -= size

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory from and to which the device copies by itself, at any time until it was waited for."""
        self.refuse_in_capture("pinned memory is allocated")
        array = np.empty(max(1, int(np.prod(shape)) * dtype.itemsize), np.uint8)
        self._pinned.add(array.ctypes.data)
        weakref.finalize(array, self._pinned.discard, array.ctypes.data)
        return poison(torch.from_numpy(array)[: int(np.prod(shape)) * dtype.itemsize].view(dtype)).reshape(shape)

    def is_pinned(self, host: Tensor) -> bool:
        return host.untyped_storage().data_ptr() in self._pinned


def poison(memory: Tensor) -> Tensor:
    """Fill it with numbers that spoil what is computed from them."""
    if memory.is_floating_point():
        return memory.fill_(_FLOAT_POISON)
    memory.view(torch.uint8).fill_(1 if memory.dtype is torch.bool else _BYTE_POISON)
    return memory


MACHINES: dict[int, Machine] = {}
"""By index, those that there are; tests put their own in."""


UNIFIED = "FERRULE_EMULATED_UNIFIED"
"""Variable that, set to 1, makes accelerators whose memory the host sees."""


def machine(index: int) -> Machine:
    """Accelerator ``index``, made when it is first used."""
    return MACHINES.setdefault(index, Machine(index, unified=os.environ.get(UNIFIED) == "1"))
