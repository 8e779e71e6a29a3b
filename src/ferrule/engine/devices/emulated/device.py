"""The emulated accelerator as a device of the engine."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ferrule.engine.devices.device import HOST_MEMORY
from ferrule.engine.devices.emulated.graphs import EmulatedGraphs
from ferrule.engine.devices.emulated.machine import Machine, machine
from ferrule.engine.devices.emulated.peers import EmulatedPeers
from ferrule.engine.devices.emulated.tensor import NAME, EmulatedTensor, register
from ferrule.engine.devices.graphs import Graphs
from ferrule.engine.devices.peers.device_group import DeviceGroup
from ferrule.engine.devices.staged import StagedDevice
from ferrule.process.memory import memory_free
from ferrule.staging import Event, offer_copier

STAYS_LOST = "FERRULE_EMULATED_LOST"
"""Variable that names a directory: while there is a file in it that has a device's number as its name, that device is
lost. SIGUSR1 makes one where the directory is there."""
PEERS = "FERRULE_EMULATED_PEERS"
"""Variable that, set to 1, lets the accelerators of a host exchange by themselves."""


@cache
def _known() -> torch.library.Library:
    offer_copier(NAME, lambda device: EmulatedDevice(device.index or 0))
    return register()


class EmulatedDevice(StagedDevice):
    """``index``: of an emulated machine (`machine`)."""

    def __init__(self, index: int = 0) -> None:
        _known()
        self.machine = machine(index)
        self.title = f"{NAME}:{index}"
        self.memory_name = HOST_MEMORY if self.machine.unified else self.title
        self.torch_device = torch.device(NAME, index)
        if stays_lost(index):
            self.machine.lose("is not back on the bus")

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.machine.pinned(shape, dtype)

    def record(self) -> Event:
        return self.machine.timeline.current.record()

    def follow(self, event: Any) -> None:
        self.machine.timeline.current.after(event)

    def host_view(self, values: Tensor) -> Tensor | None:
        return values.cells.detach() if self.machine.unified and isinstance(values, EmulatedTensor) else None

    def visible(self) -> AbstractContextManager[object]:
        return nullcontext()

    @property
    def peer_backend(self) -> str:
        return "sockets" if os.environ.get(PEERS) == "1" else ""

    def peers(self, directory: Path, rank: int, size: int) -> DeviceGroup:
        return EmulatedPeers(self.machine, directory, rank, size)

    def synchronize(self) -> None:
        self.machine.check()
        self.machine.timeline.wait_for_all()

    def memory_free(self) -> int:
        free = self.machine.memory - self.machine.used
        return min(free, memory_free()[0]) if self.machine.unified else free

    def graphs(self) -> Graphs | None:
        return EmulatedGraphs(self.machine)


def stays_lost(index: int) -> bool:
    """Whether the device of that number was lost, maybe in another process, and is not back."""
    folder = os.environ.get(STAYS_LOST)
    return bool(folder) and (Path(str(folder)) / str(index)).exists()


def fail_on_signals(emulated: Machine) -> None:
    """Lose ``emulated`` on SIGUSR1, and let it have no free memory from SIGUSR2 on: faults for a process that runs."""

    def lose() -> None:
        if (folder := os.environ.get(STAYS_LOST)) and Path(folder).is_dir():
            (Path(folder) / str(emulated.index)).touch()
        emulated.lose("fell off the bus (SIGUSR1)")

    signal.signal(signal.SIGUSR1, lambda *_: lose())
    signal.signal(signal.SIGUSR2, lambda *_: emulated.fill())
