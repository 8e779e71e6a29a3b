"""Emulated accelerators with the memory and the order of work that a test wants."""

from __future__ import annotations

from ferrule.engine.devices.emulated.machine import MACHINES, Machine


def plug_in(fresh: Machine) -> Machine:
    """Put ``fresh`` in the place of the accelerator that had its index."""
    MACHINES[fresh.index] = fresh
    return fresh
