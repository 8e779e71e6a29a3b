"""The protocol of a device: everything that a rank does with tensors beside computing on them goes through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from ferrule.engine.devices.graphs import Graphs
from ferrule.staging import Copier


class RankGroup(Protocol):
    """The operations of `fabric.Group` by which ranks put together tensors of their devices. Tensors are contiguous."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(self, x: Tensor, /) -> Any: ...
    def all_gather(self, x: Tensor, out: Tensor | None = None, /) -> Any: ...
    def gather(self, x: Tensor, root: int, out: Tensor | None = None, /) -> Any: ...
    def send(self, x: Tensor, dst: int, /) -> Any: ...
    def recv(self, x: Tensor, src: int, /) -> Any: ...


HOST_MEMORY = "host"


class Device(Protocol):
    """``title``: for people, such as ``cpu (2 threads)``. ``torch_device``: where tensors are made. ``memory_name``: of
    the memory that they take, the same for devices of a machine that share it."""

    title: str
    torch_device: torch.device
    memory_name: str

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory on the device, not initialised."""
        ...

    def upload(self, values: Tensor) -> Tensor:
        """A tensor in host memory, on the device. It is not waited for: what is started later finds it there."""
        ...

    def download(self, values: Tensor) -> Tensor:
        """A tensor on the device, in host memory, when what computes it is done."""
        ...

    def download_all(self, values: Sequence[Tensor]) -> list[Tensor]:
        """As `download`, for several of which the host waits once."""
        ...

    def download_later(self, values: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """As `download_all`, but the host waits when it calls the result: for these, not for what the device was given
        since."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was started is done."""
        ...

    def memory_free(self) -> int:
        """Bytes that can still be allocated, by what the device itself says; where tensors are in host memory, also by
        the control group."""
        ...

    def graphs(self) -> Graphs | None:
        """Captures of its work, with a pool of their own; None where it has none."""
        ...

    def visible(self) -> AbstractContextManager[object]:
        """Tensors made meanwhile are in memory that `group` uses in place, if the device has such."""
        ...

    def group(self, ranks: RankGroup, *, alike: bool) -> RankGroup:
        """``ranks``, for tensors of this device. ``alike``: the devices of all have memory of their own."""
        ...


class CopyingDevice(Device, Copier, Protocol):
    """A device with memory of its own, which copies between that and the host in the order of its other work."""
