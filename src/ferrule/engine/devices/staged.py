"""Devices with memory of their own, which they copy to and from pinned host memory in the order of their other work."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ferrule.engine.devices.device import Event, RankGroup
from ferrule.engine.devices.staging import StagedGroup


class StagedDevice(ABC):
    """`Device`, and `Copier` of itself. All work goes to the one current stream, so that nothing but the host waits."""

    title: str
    torch_device: torch.device
    memory_name: str

    @abstractmethod
    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory that the device reads and writes by itself. What is dropped is not used again before the copies
        that were started with it are done."""

    @abstractmethod
    def record(self) -> Event:
        """An event after all that was started so far."""

    @abstractmethod
    def synchronize(self) -> None: ...

    @abstractmethod
    def memory_free(self) -> int: ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def upload(self, values: Tensor) -> Tensor:
        host = self.pinned(tuple(values.shape), values.dtype).copy_(values)
        return self.empty(tuple(values.shape), values.dtype).copy_(host, non_blocking=True)

    def download(self, values: Tensor) -> Tensor:
        host = self.pinned(tuple(values.shape), values.dtype).copy_(values, non_blocking=True)
        self.record().synchronize()
        return host

    def group(self, ranks: RankGroup, *, alike: bool) -> RankGroup:
        return ranks if ranks.size == 1 else StagedGroup(ranks, self, in_pieces=alike)
