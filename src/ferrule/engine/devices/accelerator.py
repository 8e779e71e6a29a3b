"""Accelerators that torch knows: NVIDIA's and AMD's (``cuda``), Intel's (``xpu``) and Apple's (``mps``)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from ferrule.engine.devices.device import HOST_MEMORY
from ferrule.engine.devices.graphs import Graphs, TorchGraphs
from ferrule.engine.devices.peers.device_group import DeviceGroup, TorchPeers, nccl, torch_backend
from ferrule.engine.devices.staged import StagedDevice
from ferrule.errors import ConfigError
from ferrule.process.memory import memory_free
from ferrule.staging import TorchCopier, accelerators, is_integrated

BUILDS = {
    "cuda": "NVIDIA or AMD GPU, with a torch that is built for CUDA or ROCm, and the driver",
    "xpu": "Intel GPU, with a torch that is built for XPU, and the driver",
    "mps": "Apple GPU, with macOS 14 or later",
}


class TorchAccelerator(TorchCopier, StagedDevice):
    """``kind``: a key of `BUILDS`. Raises `ConfigError` where torch finds no such device here."""

    def __init__(self, kind: str, index: int = 0) -> None:
        count = accelerators(kind)
        if not count:
            raise ConfigError(
                f"device {kind}: torch {torch.__version__} finds none here; it takes an {BUILDS[kind]}"
                " (https://pytorch.org/get-started tells which torch to install)"
            )
        if index >= count:
            raise ConfigError(f"device {kind}:{index}: this machine has {count}, counted from 0")
        super().__init__(torch.device(kind, index))
        torch.accelerator.set_device_index(index)
        self.title = f"{kind}:{index}"
        self.memory_name = HOST_MEMORY if is_integrated(self.torch_device) else self.title
        if kind != "mps":
            self.title += f" ({torch.get_device_module(kind).get_device_properties(index).name})"

    @property
    def peer_backend(self) -> str:
        return torch_backend(self.torch_device.type)

    def peers(self, directory: Path, rank: int, size: int) -> DeviceGroup:
        return TorchPeers(directory, rank, size, partial(nccl, self.torch_device))

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    def memory_free(self) -> int:
        """A unified device has the host's memory: what is free of both counts."""
        if self.torch_device.type == "mps":
            free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        else:
            kept = torch.accelerator.memory_reserved() - torch.accelerator.memory_allocated()
            free = torch.accelerator.get_memory_info()[0] + kept
        return min(free, memory_free()[0]) if self.memory_name == HOST_MEMORY else free

    def graphs(self) -> Graphs | None:
        """CUDA's and HIP's; the graphs of other kinds are not in every torch that runs there."""
        return TorchGraphs(self.torch_device) if self.torch_device.type == "cuda" else None
