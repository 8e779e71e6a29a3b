"""Copiers: pinned host memory and events of a device that has memory of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from ferrule.staging.host_memory import LentMemory
from ferrule.staging.trial import objection
from ferrule.staging.visible import VisibleMemory, visible_memory

log = logging.getLogger(__name__)
ACCELERATORS = ("cuda", "xpu", "mps")
"""Kinds of device that torch itself knows, by its names: NVIDIA's and AMD's GPUs, Intel's, Apple's."""


def accelerators(kind: str) -> int:
    """Number of devices of ``kind``, one of `ACCELERATORS`, that torch finds here."""
    module: Any = torch.get_device_module(kind)
    return int(module.device_count()) if module.is_available() else 0


class Event(Protocol):
    """A point in the work that a device was given."""

    def synchronize(self) -> None:
        """Wait until everything before it is done."""
        ...


class Copier(Protocol):
    """A device's means to copy between its memory and the host's in the order of its other work."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory that the device reads and writes by itself. What is dropped is not used again before the copies
        that were started with it are done."""
        ...

    def record(self) -> Event:
        """An event after all that was started so far on the current stream."""
        ...

    def follow(self, event: Any) -> None:
        """Have what is started from now on, on the current stream, wait for ``event``, one that `record` made."""
        ...

    def host_view(self, values: Tensor) -> Tensor | None:
        """A host tensor over the memory of ``values``, which it keeps, where using that in place is right and worth it;
        else None. The host reads and writes it after an event that was recorded when the device had been given all that
        uses it, and before the device is given more: memory that is just made may still be written for whom had it
        before."""
        ...


def _apple_event() -> Any:
    event = torch.mps.event.Event()
    event.record()
    return event


_lent_to_apple = LentMemory(_apple_event)
"""Apple's GPUs read any host memory, but not in every torch does a copy that is not waited for hold it."""


class TorchCopier:
    """`Copier` of ``torch_device``, one of `ACCELERATORS` with its number."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """torch's own allocator of pinned memory knows the copies that use it."""
        if self.torch_device.type == "mps":
            return _lent_to_apple.empty(shape, dtype)
        return torch.empty(shape, dtype=dtype, pin_memory=True, device="cpu")

    def record(self) -> Event:
        if self.torch_device.type == "mps":
            return _apple_event()  # type: ignore[no-any-return]
        return torch.accelerator.current_stream(self.torch_device).record_event()

    def follow(self, event: Any) -> None:
        if self.torch_device.type == "mps":
            event.wait()
        else:
            torch.accelerator.current_stream(self.torch_device).wait_event(event)

    def host_view(self, values: Tensor) -> Tensor | None:
        memory = None if values.is_conj() or values.is_neg() else _proven(self.torch_device)
        return None if memory is None else memory.view(values)

    def visible(self) -> AbstractContextManager[object]:
        """What this thread makes on the device meanwhile `host_view` sees, if the device has such memory."""
        memory = _proven(self.torch_device)
        return nullcontext() if memory is None else memory.making()


@cache
def _proven(device: torch.device) -> VisibleMemory | None:
    """Memory of ``device`` that is used in place, as a trial, once in a process, finds right and worth it."""
    try:
        memory = visible_memory(device)
        if memory is None:
            return None
        reason = objection(memory, TorchCopier(device))
    except (AttributeError, NotImplementedError, OSError, RuntimeError) as error:
        reason = str(error)
    log.info("%s: tensors for the fabric are %s", device, f"copied: {reason}" if reason else "used in place")
    return None if reason else memory


_copiers: dict[str, Callable[[torch.device], Copier]] = dict.fromkeys(ACCELERATORS, TorchCopier)


def offer_copier(kind: str, make: Callable[[torch.device], Copier]) -> None:
    """Have tensors on devices of ``kind`` copied by ``make(device)``."""
    _copiers[kind] = make


def copier_of(device: torch.device) -> Copier | None:
    """The copier of a device; None where its tensors cannot be copied so."""
    make = _copiers.get(device.type)
    return None if make is None else make(device)
