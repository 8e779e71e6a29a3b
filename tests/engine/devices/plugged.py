"""Emulated accelerators with the memory and the order of work that a test wants."""

from __future__ import annotations

from ferrule.engine.devices import Device, open_device
from ferrule.engine.devices.emulated.machine import MACHINES, Machine


def plug_in(fresh: Machine) -> Machine:
    """Put ``fresh`` in the place of the accelerator that had its index."""
    MACHINES[fresh.index] = fresh
    return fresh


def emulated() -> Device:
    """The first accelerator, which nothing was done with before."""
    open_device("emulated", 1)
    plug_in(Machine(0))
    return open_device("emulated:0", 1)
