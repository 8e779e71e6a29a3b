"""Devices by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrule.engine.devices.cpu import CpuDevice
from ferrule.engine.devices.device import Device
from ferrule.errors import ConfigError


@dataclass(frozen=True)
class DeviceKind:
    """``open``: makes the device, given the number of a rank's threads. ``pinned``: these compute, and are to have
    cores of their own."""

    open: Callable[[int], Device]
    pinned: bool = False


DEVICES = {"cpu": DeviceKind(CpuDevice, pinned=True)}


def device_kind(name: str) -> DeviceKind:
    """Raises `ConfigError` where there is no such device."""
    if name not in DEVICES:
        raise ConfigError(f"no device is called {name!r}; there is {', '.join(DEVICES)}")
    return DEVICES[name]


def open_device(name: str, threads: int) -> Device:
    """Raises `ConfigError` where there is no such device."""
    return device_kind(name).open(threads)
