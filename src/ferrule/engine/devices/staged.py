"""Devices with memory of their own, which they copy to and from pinned host memory in the order of their other work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ferrule.engine.devices.device import RankGroup
from ferrule.engine.devices.graphs import Graphs
from ferrule.engine.devices.peers.device_group import DeviceGroup
from ferrule.engine.devices.staging import StagedGroup
from ferrule.staging import Event, staged


class StagedDevice(ABC):
    """`CopyingDevice`. All work goes to the one current stream, so that nothing but the host waits."""

    title: str
    torch_device: torch.device
    memory_name: str

    @abstractmethod
    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `Copier.pinned`."""

    @abstractmethod
    def record(self) -> Event:
        """See `Copier.record`."""

    @abstractmethod
    def follow(self, event: Any) -> None:
        """See `Copier.follow`."""

    @abstractmethod
    def host_view(self, values: Tensor) -> Tensor | None:
        """See `Copier.host_view`."""

    @abstractmethod
    def visible(self) -> AbstractContextManager[object]:
        """See `Device.visible`."""

    @property
    @abstractmethod
    def peer_backend(self) -> str:
        """Name of what `peers` uses; empty where devices of a host cannot exchange by themselves."""

    @abstractmethod
    def peers(self, directory: Path, rank: int, size: int) -> DeviceGroup:
        """Join ``size`` ranks of this host, of which this one is ``rank``, that share a private ``directory``. May wait
        for the others without an end, and raise what the library does."""

    @abstractmethod
    def synchronize(self) -> None: ...

    @abstractmethod
    def memory_free(self) -> int: ...

    @abstractmethod
    def graphs(self) -> Graphs | None:
        """See `Device.graphs`."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def upload(self, values: Tensor) -> Tensor:
        host = self.pinned(tuple(values.shape), values.dtype).copy_(values)
        return self.empty(tuple(values.shape), values.dtype).copy_(host, non_blocking=True)

    def download(self, values: Tensor) -> Tensor:
        return staged(self, values, apart=True).arrived()

    def download_all(self, values: Sequence[Tensor]) -> list[Tensor]:
        return self.download_later(values)()

    def download_later(self, values: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        pieces = [staged(self, each, apart=True) for each in values]

        def arrived() -> list[Tensor]:
            for piece in pieces[-1:]:  # after the others
                piece.arrived()
            return [piece.host for piece in pieces]

        return arrived

    def group(self, ranks: RankGroup, *, alike: bool) -> RankGroup:
        return ranks if ranks.size == 1 else StagedGroup(ranks, self, in_pieces=alike)
