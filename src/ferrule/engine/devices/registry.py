"""Devices by name (`engine.device_names`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ferrule.engine.device_names import AUTO, CPU, parse_device
from ferrule.engine.devices.accelerator import BUILDS, TorchAccelerator
from ferrule.engine.devices.cpu import CpuDevice
from ferrule.engine.devices.device import Device
from ferrule.staging import accelerators

MOST_EMULATED = 8
"""Emulated accelerators of a machine: enough for tests."""


@dataclass(frozen=True)
class DeviceKind:
    """``open``: makes the device, given its number and that of a rank's threads. ``count``: how many there are here.
    ``pinned``: threads compute, and are to have cores of their own."""

    open: Callable[[int, int], Device]
    count: Callable[[], int]
    pinned: bool = False


def _accelerator(kind: str) -> DeviceKind:
    def opened(number: int, threads: int) -> Device:
        return TorchAccelerator(kind, number)

    return DeviceKind(opened, lambda: accelerators(kind))


def _emulated(number: int, threads: int) -> Device:
    from ferrule.engine.devices.emulated.device import EmulatedDevice, fail_on_signals  # registers a device with torch

    device = EmulatedDevice(number)
    if threading.current_thread() is threading.main_thread():
        fail_on_signals(device.machine)
    return device


DEVICES = {
    CPU: DeviceKind(lambda number, threads: CpuDevice(threads), lambda: 1, pinned=True),
    **{kind: _accelerator(kind) for kind in BUILDS},
    "emulated": DeviceKind(_emulated, lambda: MOST_EMULATED),
}


def name_here(name: str) -> str:
    """``name``, where ``auto`` is an accelerator that torch finds on this machine, or else the processor."""
    return next((kind for kind in BUILDS if DEVICES[kind].count()), CPU) if name == AUTO else name


def find_device(name: str, place: int) -> str:
    """``name`` with a number: for rank ``place`` of those on this machine that want one, in turn. Raises `ConfigError`
    where there is no such device."""
    kind, number = parse_device(name)
    count = DEVICES[kind].count()
    if number is None:
        number = place % count if count else 0
    return f"{kind}:{number}"


def device_kind(name: str) -> DeviceKind:
    """Raises `ConfigError` where there is no such device."""
    return DEVICES[parse_device(name)[0]]


def open_device(name: str, threads: int) -> Device:
    """Raises `ConfigError` where there is no such device, or it cannot be used here."""
    kind, number = parse_device(name)
    return DEVICES[kind].open(number or 0, threads)
