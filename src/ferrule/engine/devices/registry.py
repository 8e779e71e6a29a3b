"""Devices by name (`engine.device_names`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ferrule.engine.device_names import AUTO, CPU, EMULATED, MOST_EMULATED, parse_device
from ferrule.engine.devices.accelerator import BUILDS, TorchAccelerator
from ferrule.engine.devices.cpu import CpuDevice
from ferrule.engine.devices.device import Device
from ferrule.staging import accelerators


@dataclass(frozen=True)
class DeviceKind:
    """``open``: makes the device, given its number and that of a rank's threads. ``count``: how many there are here.
    ``gone``: whether that of a number is known not to be there now.
    ``pinned``: threads compute, and are to have cores of their own."""

    open: Callable[[int, int], Device]
    count: Callable[[], int]
    gone: Callable[[int], bool] = lambda number: False
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


def _emulated_gone(number: int) -> bool:
    from ferrule.engine.devices.emulated.device import stays_lost

    return stays_lost(number)


DEVICES = {
    CPU: DeviceKind(lambda number, threads: CpuDevice(threads), lambda: 1, pinned=True),
    **{kind: _accelerator(kind) for kind in BUILDS},
    EMULATED: DeviceKind(_emulated, lambda: MOST_EMULATED, _emulated_gone),
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


def others_here(name: str) -> tuple[str, ...]:
    """Devices of this machine beside ``name``: of its kind, then further accelerators, and at last the processor."""
    kind, _ = parse_device(name)
    kinds = dict.fromkeys((kind, *BUILDS, CPU))
    there = [(each, number) for each in kinds for number in range(DEVICES[each].count())]
    names = [CPU if each == CPU else f"{each}:{number}" for each, number in there if not DEVICES[each].gone(number)]
    return tuple(each for each in names if each != name)


def device_kind(name: str) -> DeviceKind:
    """Raises `ConfigError` where there is no such device."""
    return DEVICES[parse_device(name)[0]]


def open_device(name: str, threads: int) -> Device:
    """Raises `ConfigError` where there is no such device, or it cannot be used here."""
    kind, number = parse_device(name)
    return DEVICES[kind].open(number or 0, threads)
