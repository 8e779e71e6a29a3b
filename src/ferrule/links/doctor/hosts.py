"""What a host is called in findings."""

from __future__ import annotations

from ferrule.links.types import Inventory


def host_name(inventory: Inventory) -> str:
    return inventory.machine.name or inventory.machine.tree
