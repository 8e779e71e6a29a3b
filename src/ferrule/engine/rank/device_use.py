"""Use of a rank's device: it is tried before anything is loaded, and named where it is the cause of an error."""

from __future__ import annotations

import torch

from ferrule.engine.device_names import CPU, device_of, parse_device
from ferrule.engine.devices import find_device, name_here, open_device, others_here
from ferrule.engine.messages import DeviceLost
from ferrule.engine.options import STEP_TIMEOUT
from ferrule.engine.shards.messages import tell_all
from ferrule.errors import ConfigError, FerruleError
from ferrule.fabric import Group
from ferrule.process import boot_id


def devices_of_all(world: Group, devices: str) -> str:
    """Names of the ranks' devices, of those that the user gave; this rank's with its number. All ranks call it."""
    mine = [boot_id(), name_here(device_of(devices, world.rank, world.size))]
    wanted = tell_all(world, mine, STEP_TIMEOUT)
    names = [name for _, name in wanted]
    names[world.rank] = find_device(mine[1], wanted[: world.rank].count(mine))
    return ",".join(names)


class DeviceUse:
    """``name``: as far as it is known. ``starting``: until the rank is ready."""

    def __init__(self) -> None:
        self.name = CPU
        self.starting = True
        self._trying = True

    def attempt(self, threads: int) -> None:
        """Raises what using the device raises, where it is no processor."""
        if parse_device(self.name)[0] != CPU:
            device = open_device(self.name, threads)
            device.download(device.upload(torch.ones(8)) + 1)
        self._trying = False

    def lost_by(self, error: Exception) -> DeviceLost | None:
        """The device, where ``error`` says that it cannot be used. Too little memory does not."""
        if parse_device(self.name)[0] == CPU or isinstance(error, torch.OutOfMemoryError):
            return None
        absent = self._trying and (isinstance(error, ConfigError) or not isinstance(error, FerruleError))
        if not absent and not isinstance(error, torch.AcceleratorError):
            return None
        return DeviceLost(self.name, self.starting, others_here(self.name))
