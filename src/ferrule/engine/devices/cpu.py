"""The processors of this machine as a device: tensors are in host memory, and a call returns when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ferrule.engine.devices.device import HOST_MEMORY, RankGroup
from ferrule.engine.devices.graphs import Graphs
from ferrule.process.memory import memory_free


class CpuDevice:
    """`Device`. ``threads``: of torch, in this process."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.title = f"cpu ({threads} thread{'s' if threads > 1 else ''})"
        self.torch_device = torch.device("cpu")
        self.memory_name = HOST_MEMORY

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def upload(self, values: Tensor) -> Tensor:
        return values

    def download(self, values: Tensor) -> Tensor:
        return values

    def download_all(self, values: Sequence[Tensor]) -> list[Tensor]:
        return list(values)

    def download_later(self, values: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        return lambda: list(values)

    def synchronize(self) -> None:
        return

    def memory_free(self) -> int:
        free, _ = memory_free()
        return free

    def graphs(self) -> Graphs | None:
        return None

    def visible(self) -> AbstractContextManager[object]:
        return nullcontext()

    def group(self, ranks: RankGroup, *, alike: bool) -> RankGroup:
        return ranks
