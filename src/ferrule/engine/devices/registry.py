"""Devices by name."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.engine.devices.cpu import CpuDevice
from ferrule.engine.devices.device import Device
from ferrule.errors import ConfigError

DEVICES: dict[str, Callable[[int], Device]] = {"cpu": CpuDevice}
"""By name: what makes the device, given the number of a rank's threads."""


def open_device(name: str, threads: int) -> Device:
    """Raises `ConfigError` where there is no such device."""
    if name not in DEVICES:
        raise ConfigError(f"no device is called {name!r}; there is {', '.join(DEVICES)}")
    return DEVICES[name](threads)
